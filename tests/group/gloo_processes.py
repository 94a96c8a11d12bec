"""Fixtures for tests with processes as ranks, joined by gloo on this machine's loopback."""

from datetime import timedelta

import pytest
from rank_processes import RankProcesses
from torch import distributed

from treefold import _native


@pytest.fixture(scope="session")
def gloo(programs):
    """A launcher of ranks. Threads of the native core are the process's, and none must be left."""
    if not _native.HAS_SHARED_MEMORY:
        pytest.skip("this system has no shared memory of the kind that groups need")
    loopback = {"GLOO_SOCKET_IFNAME": "lo", "RES_OPTIONS": "timeout:1 attempts:1"}
    processes = RankProcesses({**loopback, "TREEFOLD_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "FATAL"}, programs)
    yield processes
    processes.close()


@pytest.fixture
def stores():
    """Return a function that makes a store of this process, which outlives the ranks, and returns its port."""
    kept = []

    def make():
        kept.append(
            distributed.TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=60), wait_for_workers=False)
        )
        return kept[-1].port

    return make
