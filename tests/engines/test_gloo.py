import functools
from datetime import timedelta

import channel_conformance
import gloo_ranks
import pytest
from rank_processes import RankProcesses, World
from torch import distributed


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
        store = distributed.TCPStore(
            "127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=60), wait_for_workers=False
        )
        plain, options = function, {}
        if isinstance(function, functools.partial):
            plain, options = function.func, function.keywords
        arguments = {"name": plain.__name__, "options": options, "port": store.port}
        world = World(gloo_ranks.on_channel, size, arguments, timeout_seconds=None, may_leave=("folder",))
        ended = ranks.run(world)
        assert [(one.rank, one.error) for one in ended if one.error] == []
        return [one.value for one in ended]

    return run_function


class TestGlooChannel:
    @pytest.mark.parametrize(
        "check", channel_conformance.CHECKS + channel_conformance.CHECKS_WITH_DEATHS, ids=lambda check: check.__name__
    )
    def test_is_a_channel(self, run, check):
        """The suite of all channels, over sockets."""
        check(run)
