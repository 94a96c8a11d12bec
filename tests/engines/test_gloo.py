import functools
from datetime import timedelta

import gloo_ranks
import pytest
from rank_processes import RankProcesses, World
from torch import distributed

from treefold.testing import CHANNEL_CONFORMANCE


@pytest.fixture(scope="module")
def ranks():
    """Ranks whose channels are on this machine's loopback."""
    processes = RankProcesses({"GLOO_SOCKET_IFNAME": "lo", "RES_OPTIONS": "timeout:1 attempts:1"})
    yield processes
    processes.close()


@pytest.fixture
def run(ranks):
    """A way to run the suite, each time with a store of its own, which outlives the ranks."""

    def run_function(function, size):
        plain, options = function, {}
        if isinstance(function, functools.partial):
            plain, options = function.func, function.keywords
        store = distributed.TCPStore(
            "127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=60), wait_for_workers=False
        )
        arguments = {"name": plain.__name__, "options": options, "port": store.port}
        ended = ranks.run(World(gloo_ranks.on_channel, size, arguments, timeout_seconds=None, may_leave=("folder",)))
        assert [(one.rank, one.error) for one in ended if one.error] == []
        return [one.value for one in ended]

    return run_function


class TestGlooChannel:
    @pytest.mark.parametrize("case", CHANNEL_CONFORMANCE, ids=lambda case: case.name)
    def test_is_a_channel(self, run, case):
        """The suite of all channels, over sockets."""
        case.check(run)
