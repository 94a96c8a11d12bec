"""Lets the tests of this folder share ``attack``, and the damaged machines of ``tests/topology``; bounds memory."""

import resource
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "topology")]

import attack  # noqa: E402 - it is found now


@pytest.fixture
def little_memory():
    """Let the process allocate little more than it has: what asks for more fails, and fails the test."""
    with open("/proc/self/statm", encoding="ascii") as figures:  # noqa: PTH123 - no file
        used = int(figures.read().split()[0]) * resource.getpagesize()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + attack.MOST_BYTES, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, limits)
