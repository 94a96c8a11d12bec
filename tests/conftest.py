"""Shared by the tests of all folders: ``pretended``, forked programs, the tests that `make test` leaves out, Ctrl-C."""

import gc
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from programs import Programs

# Shells start background jobs deaf to it, and so are all processes that these start.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def programs():
    """Starts programs that need not import the frameworks any more."""
    started = Programs()
    yield started
    started.close()


def pytest_collection_finish():
    """Freeze the objects that frameworks have made, so that the garbage collector does not visit them."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish():
    """Unfreeze the objects at the end, to be collected: modules of C++ complain of those that are left."""
    gc.unfreeze()


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


@pytest.fixture
def treefold(capsys) -> Callable[..., Outcome]:
    """Run the command line in this process, as the console script does."""
    from treefold.cli import main  # noqa: PLC0415 - no other tests need it

    def run(*arguments: object) -> Outcome:
        with pytest.raises(SystemExit) as stopped:
            main([str(argument) for argument in arguments])
        written = capsys.readouterr()
        return Outcome(stopped.value.code or 0, written.out, written.err)

    return run


def pytest_collection_modifyitems(items):
    """Leave out what takes long and finds little."""
    for item in items:
        if item.get_closest_marker("long") and os.environ.get("TREEFOLD_CASES") != "full":
            item.add_marker(pytest.mark.skip(reason="takes long: `make test-long` runs it"))
