"""Ranks that train with Keras, on each of its backends."""

import os
import sys
from pathlib import Path

import pytest

sys.path += [str(Path(__file__).parent), str(Path(__file__).parents[1] / "group")]

from keras_ranks import MAY_LEAVE
from rank_processes import RankProcesses, World

from treefold import _native

BACKENDS = ("tensorflow", "jax", "torch")
_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0", "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="session", autouse=True)
def shared_memory():
    if not _native.HAS_SHARED_MEMORY:
        pytest.skip("this system has no shared memory of the kind that groups need")


def pytest_generate_tests(metafunc):
    """Give each test PyTorch, on which nothing is compiled, and backends of which our code knows; a full run: all."""
    if "keras_ranks" in metafunc.fixturenames:
        named = metafunc.definition.get_closest_marker("also_on")
        backends = BACKENDS if os.environ.get("TREEFOLD_CASES") == "full" else ("torch", *(named.args if named else ()))
        metafunc.parametrize("keras_ranks", backends, indirect=True, scope="session")


@pytest.fixture(scope="session")
def keras_ranks(request):
    """Return a function that runs a body on ranks, forked from a process with Keras, and returns their ends."""
    folder = str(Path(__file__).parent)  # modules of bodies import each other
    environment = {**_QUIET, "KERAS_BACKEND": request.param, "PYTHONPATH": folder}
    processes = RankProcesses(environment)

    def run(body, size, **arguments):
        timeout_seconds = arguments.pop("timeout_seconds", 60.0)
        world = World(body, size, arguments, timeout_seconds=timeout_seconds, may_leave=MAY_LEAVE)
        return processes.run(world)

    run.backend, run.environment = request.param, environment
    yield run
    processes.close()


@pytest.fixture
def values(keras_ranks):
    """Return what runs a body on ranks, and gives what each has returned."""

    def run(body, size, **arguments):
        ended = keras_ranks(body, size, **arguments)
        assert all(one.error is None and not one.signal and not one.code for one in ended), ended
        return [one.value for one in ended]

    run.backend, run.environment = keras_ranks.backend, os.environ | keras_ranks.environment
    return run
