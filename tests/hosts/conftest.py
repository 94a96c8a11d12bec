"""Labs for tests: emulated hosts, where this machine lets us make them."""

import contextlib

import pytest

import lab


@pytest.fixture
def build():
    """Return a function that builds a lab of a network; the labs are gone after the test."""
    if reason := lab.missing():
        pytest.skip(reason)
    with contextlib.ExitStack() as labs:
        yield lambda network: labs.enter_context(lab.Lab(network))
