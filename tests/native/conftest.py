"""Lets the tests of this folder share ``native_cases``, and puts back the number of threads that they change."""

import sys
from pathlib import Path

import pytest

from treefold.execution import native

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def _same_threads_afterwards():
    """Leave the number of threads as it was."""
    before = native.num_threads()
    yield
    native.set_num_threads(before)
