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
def run_body(ranks):
    """A way to run ranks, each time with a store of its own, which outlives them."""

    def run(body, size, **arguments):
        store = distributed.TCPStore(
            "127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=60), wait_for_workers=False
        )
        arguments["port"] = store.port
        ended = ranks.run(World(body, size, arguments, timeout_seconds=None, may_leave=("folder",)))
        assert [(one.rank, one.error) for one in ended if one.error] == []
        return [one.value for one in ended]

    return run


@pytest.fixture
def run(run_body):
    """A way to run the suite."""

    def run_function(function, size):
        plain, options = function, {}
        if isinstance(function, functools.partial):
            plain, options = function.func, function.keywords
        return run_body(gloo_ranks.on_channel, size, name=plain.__name__, options=options)

    return run_function


class TestGlooChannel:
    @pytest.mark.parametrize("case", CHANNEL_CONFORMANCE, ids=lambda case: case.name)
    def test_is_a_channel(self, run, case):
        """The suite of all channels, over sockets."""
        case.check(run)

    def test_holds_no_message_that_has_come_in_part(self, run_body):
        """Who waits for it is never woken, but the memory of a call that has failed is free again."""
        assert run_body(gloo_ranks.stop_in_a_message, 2) == [False, None]
