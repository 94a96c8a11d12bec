"""One rank of a group over gloo fails, in the middle of calls or between them, as real processes do."""

import random
import signal
import statistics

import fault_ranks
import pytest
from rank_processes import World

from treefold.engines.times import GRACE_PERIOD_S

FAULTS = 10  # of each kind
#: For ranks that wait for one that is stopped: more than ranks that are only slow on a busy machine take.
_DEADLINE_S = 5.0
#: Worlds at once: those with a stopped rank mostly wait.
_STOPPED_AT_ONCE = 6
_OWN = {"raise": "RuntimeError", "interrupt": "KeyboardInterrupt"}


def worlds_of(kind, stores):
    """Yield as many worlds as there are faults of a kind."""
    for seed in range(FAULTS):
        draw = random.Random(f"{kind} {seed}")  # noqa: S311 - a test's choice
        size = draw.choice((2, 3, 3, 4))
        length = draw.choice((100, 5000, 200_000))
        arguments = {"kind": kind, "at": draw.randrange(80), "victim": draw.randrange(size), "length": length}
        arguments["busy_s"] = draw.choice((0.0, 0.0, 0.2))
        yield World(
            fault_ranks.call_with_fault,
            size,
            {**arguments, "port": stores(), "timeout_seconds": _DEADLINE_S if kind == "stop" else 60.0},
            timeout_seconds=None,
            may_leave=("folder",),
            seconds=120,
        )


@pytest.mark.parametrize("kind", ["kill", "exit", "raise", "interrupt"])
class TestFault:
    def test_is_named_by_all_others(self, request, gloo, stores, kind):
        worlds = list(worlds_of(kind, stores))
        seconds, onward = [], []
        for world, ended in zip(worlds, gloo.run_all(worlds, 3), strict=True):
            victim = world.arguments["victim"]
            assert [(one.error, one.stack) for one in ended if one.error] == [], world
            for one in ended:
                if one.rank == victim:
                    continue
                name, ranks, is_whole, _, (is_right, took) = one.value
                assert (ranks, is_whole, is_right) == ((victim,), True, True), (world, ended)
                assert name == "PeerLostError", (world, ended)
                if not world.arguments["busy_s"]:  # else a rank may be busy when the other ends
                    seconds.append(one.seconds_after)
                    onward.append(took)
            self._check_victim(kind, ended[victim])
        late = (statistics.median(seconds), max(seconds))
        request.node.user_properties.append(("seconds until told, median and most", late))
        request.node.user_properties.append(("seconds until the group without it, most", max(onward)))
        print(f"{kind}: told after {late[0]:.3f} s, at most {late[1]:.3f}; without it after {max(onward):.3f}")

    def _check_victim(self, kind, ended):
        """Assert that the rank has failed as it should."""
        if kind == "kill":
            assert ended.signal == signal.SIGKILL
        elif kind == "exit":
            assert ended.code == 7
        else:
            assert ended.value[0] == _OWN[kind], ended
            assert ended.value[2], ended


class TestStop:
    def test_keeps_nobody_waiting_and_tears_nothing(self, gloo, stores):
        """A stopped rank is named, or taken for a slow network; no call lasts longer than two graces more."""
        worlds = list(worlds_of("stop", stores))
        for world, ended in zip(worlds, gloo.run_all(worlds, _STOPPED_AT_ONCE), strict=True):
            victim = world.arguments["victim"]
            assert [(one.error, one.stack) for one in ended if one.error] == [], world
            for name, ranks, is_whole, late, _ in (one.value for one in ended if one.rank != victim):
                assert name == "DeadlineError", (world, ended)
                assert set(ranks) <= {victim}, (world, ended)
                assert is_whole, (world, ended)
                assert late < 2 * GRACE_PERIOD_S + 1.0, (world, ended)
            assert ended[victim].value[2], ended  # it has no result, or a whole one


class TestBetweenCalls:
    @pytest.mark.parametrize("kind", ["kill", "raise"])
    def test_a_rank_that_ends_while_all_compute_is_named_in_the_next_call(self, gloo, stores, kind):
        """Though nobody was in a call when it was killed, or raised before its first one."""
        ended = gloo.run(self._world(stores, kind, 60.0))
        assert [ended[rank].value[:3] for rank in (0, 2)] == [("PeerLostError", (1,), True)] * 2, ended

    def test_a_rank_that_loads_data_for_too_long_is_named(self, gloo, stores):
        """The others give up at their deadline, and the rank itself when it comes."""
        ended = gloo.run(self._world(stores, "load", 2.0))
        assert [ended[rank].value[:3] for rank in (0, 2)] == [("DeadlineError", (1,), True)] * 2, ended
        assert max(ended[rank].value[3] for rank in (0, 2)) < 2 * GRACE_PERIOD_S + 1.0
        assert ended[1].value[::2][:2] == ("DeadlineError", True), ended

    @staticmethod
    def _world(stores, kind, timeout_seconds):
        arguments = {"port": stores(), "kind": kind, "timeout_seconds": timeout_seconds}
        return World(fault_ranks.call_after_fault, 3, arguments, timeout_seconds=None, may_leave=("folder",))


class TestHosts:
    @pytest.mark.parametrize("at", [0, -1], ids=["first", "last"])
    def test_a_rank_that_came_late_is_not_missed_with_its_neighbour(self, gloo, stores, at):
        """It hears at the others' deadline, though its own is later, wherever it waits for its neighbour."""
        world = self._world(fault_ranks.stop_beside_a_late_rank, stores, timeout_seconds=4.0, late_s=1.0, at=at)
        ended = gloo.run(world)
        assert [one.value[:2] for one in ended[1:]] == [("DeadlineError", (0,))] * 3, ended
        assert ended[1].value[2] < 2 * GRACE_PERIOD_S + 0.9  # not at its own deadline

    def test_a_rank_that_hands_over_after_a_death_is_not_missed(self, gloo, stores):
        """It hears of it where it would wait for its neighbour."""
        ended = gloo.run(self._world(fault_ranks.lose_a_rank_before_handing_over, stores))
        assert [one.value for one in ended[:3]] == [((3,), True)] * 3, ended

    @staticmethod
    def _world(body, stores, size=4, **arguments):
        return World(body, size, {"port": stores(), **arguments}, timeout_seconds=None, may_leave=("folder",))
