"""What the tests of all folders share: ``pretended``, programs that are forked, and Ctrl-C."""

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
