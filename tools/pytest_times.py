"""A plugin of pytest for ``mutants.py``: writes how long each test took, by its name, to the file $TEST_TIMES."""

import json
import os
from collections import defaultdict
from pathlib import Path

import pytest

_SECONDS = defaultdict[str, float](float)
_SKIPPED = set[str]()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note a part of a test: its start, the call or its end."""
    _SECONDS[report.nodeid] += report.duration
    if report.skipped:
        _SKIPPED.add(report.nodeid)


def pytest_sessionfinish() -> None:
    """Write the times of all tests that were not skipped."""
    if "TEST_TIMES" in os.environ:
        seconds = {name: taken for name, taken in _SECONDS.items() if name not in _SKIPPED}
        Path(os.environ["TEST_TIMES"]).write_text(json.dumps(seconds), encoding="utf-8")
