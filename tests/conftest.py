"""What the tests of all folders share: ``pretended``, programs that are forked, what `make test` leaves out, Ctrl-C."""

import os
import signal
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

from programs import Programs

# Shells start background jobs deaf to it, and so are all processes that these start.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def programs():
    """What starts programs that need not import the frameworks any more."""
    started = Programs()
    yield started
    started.close()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Leave out what takes long and finds little."""
    for item in items:
        if item.get_closest_marker("long") and os.environ.get("TREEFOLD_CASES") != "full":
            item.add_marker(pytest.mark.skip(reason="takes long: `make test-long` runs it"))
