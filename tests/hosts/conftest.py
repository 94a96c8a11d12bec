"""Labs for tests: emulated hosts, where this machine lets us make them."""

import contextlib
import sys
from pathlib import Path

import pytest

import lab

sys.path.extend([str(Path(__file__).parent), str(Path(__file__).parents[1] / "group")])

from gloo_processes import gloo, stores  # noqa: F401 - fixtures


@pytest.fixture
def build():
    """Return a function that builds a lab of a network; the labs are gone after the test."""
    if reason := lab.missing():
        pytest.skip(reason)
    with contextlib.ExitStack() as labs:
        yield lambda network: labs.enter_context(lab.Lab(network))
