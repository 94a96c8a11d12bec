"""Errors that users see when networks and ranks fail: ranks on the hosts of a lab, over gloo, as in a script."""

import time

import pytest
from lab_ranks import Ranks

import lab as laboratory
from lab import Cable, Network, Trunk, racks, star
from treefold.engines.times import GRACE_PERIOD_S
from treefold.errors import PeerLostError
from treefold.group.protocol import LOST

DEADLINE_S = 2.0
#: How much later than its deadline a call may end: after two graces, and the machine may be busy.
LATEST_S = 2 * GRACE_PERIOD_S + 1.0
#: Long enough for calls to be under way, and to have exchanged more than their first round.
_UNDER_WAY_S = 0.5


@pytest.fixture(scope="module")
def job():
    """Three ranks on three hosts, and the lab, for tests that leave all of them alive and the cables as they were."""
    if reason := laboratory.missing():
        pytest.skip(reason)
    with laboratory.Lab(star(200, 200, 200)) as lab, Ranks(lab, 3) as ranks:
        yield lab, ranks


def begin(ranks):
    assert set(ranks.make("connect", timeout_seconds=DEADLINE_S).values()) == {len(ranks.all)}
    assert set(ranks.make("reduce").values()) == {2 ** len(ranks.all) - 1}


def check(told, error, suspects):
    """Assert that ranks have raised an error in time that names nobody but these, and that their outputs are whole."""
    late = {rank: one["late"] for rank, one in told.items()}
    print(f"{error}: {', '.join(f'rank {rank} {seconds:+.3f} s' for rank, seconds in late.items())}")
    assert {one["error"] for one in told.values()} == {error}
    assert all(set(one["ranks"]) <= set(suspects) for one in told.values()), told
    assert all(one["is_as_it_was"] for one in told.values())
    assert max(late.values()) < LATEST_S


class TestCut:
    """A cable is taken out while ranks call."""

    def test_is_named_by_all_others_and_all_come_back(self, job):
        """They name the rank behind the cable, it names some of them; with the cable in again, all connect again."""
        lab, ranks = job
        begin(ranks)
        ranks.tell("reduce_until_error")
        time.sleep(_UNDER_WAY_S)
        lab.cut(1)
        told = ranks.hear()
        lab.mend(1)
        check({rank: told[rank] for rank in (0, 2)}, "DeadlineError", [1])
        check({1: told[1]}, "DeadlineError", [0, 2])
        begin(ranks)

    def test_while_a_rank_tries_in_vain_to_connect(self, job):
        """It is told so in one sentence; how often it has tried does not matter when all connect."""
        lab, ranks = job
        begin(ranks)
        lab.cut(1)
        told = ranks.make("connect", (1,), timeout_seconds=1, connect_timeout_seconds=1)[1]
        lab.mend(1)
        assert told["error"] == "ConnectError"
        assert told["says"].startswith("The group did not form: PyTorch's store has failed this rank: ")
        assert told["took"] < 1 + LATEST_S
        for rank in (1, 1, 2):
            told = ranks.make("connect", (rank,), timeout_seconds=1, connect_timeout_seconds=3)[rank]
            assert told["ranks"] == [other for other in ranks.all if other != rank]
        begin(ranks)


class TestHalves:
    """A network falls into two halves, and both go on without the other: one of them does."""

    def test_both_of_which_reach_the_store(self, build):
        """The store decides. The other half hears which ranks go on, and comes back when the network is whole."""
        # The store is reached by eth0; gloo uses eth1, whose two switches are joined by a trunk.
        cables = [Cable(host, 0, 0, 200) for host in range(4)] + [
            Cable(host, 1, 1 + host // 2, 200) for host in range(4)
        ]
        lab = build(Network("two halves", tuple(cables), (Trunk(1, 2, 200),)))
        with Ranks(lab, 4, environment={"GLOO_SOCKET_IFNAME": "eth1"}) as ranks:
            ends, told = self._go_on_in_halves(lab, ranks)
            ahead = next(rank for rank in ranks.all if told[rank] == 2)
            half = ends[ahead // 2]
            assert {rank: told[rank] for rank in half} == dict.fromkeys(half, 2)
            for rank in ends[1 - ahead // 2]:
                assert told[rank]["says"] == (
                    f"It was decided that ranks {half[0]}, {half[1]} may go on, without this one, rank {rank}. Connect "
                    "again to come back."
                )
            assert ranks.make("reduce", half) == dict.fromkeys(half, sum(2.0**rank for rank in half))
            lab.mend_trunk()
            begin(ranks)

    def test_one_of_which_reaches_the_store(self, build):
        """The half behind the trunk cannot know which ranks go on, and raises; it returns to the whole network."""
        lab = build(racks(200, (200, 200), (200, 200)))
        with Ranks(lab, 4) as ranks:
            _, told = self._go_on_in_halves(lab, ranks)
            assert {rank: told[rank] for rank in (0, 1)} == {0: 2, 1: 2}
            for rank in (2, 3):
                assert "PyTorch's store has failed this rank: it has not answered" in told[rank]["says"], told
            assert ranks.make("reduce", (0, 1)) == {0: 3, 1: 3}
            lab.mend_trunk()
            begin(ranks)

    def _go_on_in_halves(self, lab, ranks):
        halves = (0, 1), (2, 3)
        begin(ranks)
        ranks.tell("reduce_until_error")
        time.sleep(_UNDER_WAY_S)
        lab.cut_trunk()
        told = ranks.hear()
        assert {one["error"] for one in told.values()} == {"DeadlineError"}
        assert all(one["is_as_it_was"] and one["late"] < LATEST_S for one in told.values())
        for half, other in zip(halves, reversed(halves), strict=True):
            ranks.tell("without", half, lost=other, seconds=4)
        return halves, ranks.hear()


class TestRank:
    """A rank is away, slow or gone."""

    def test_that_is_stopped_past_the_deadline_comes_back(self, job):
        """The others give up; it finds that they have, and names nobody; all connect again."""
        _, ranks = job
        begin(ranks)
        ranks.tell("reduce_until_error")
        time.sleep(_UNDER_WAY_S)
        ranks.job.stop(2)
        told = ranks.hear((0, 1))
        ranks.job.resume(2)
        check(told, "DeadlineError", [2])
        told = ranks.hear((2,))[2]
        assert told["error"] in {"DeadlineError", "PeerLostError"}
        assert told["is_as_it_was"]
        begin(ranks)

    def test_that_calls_too_late_names_nobody(self, job):
        """It has not begun its call when the others give up, and finds that they have."""
        _, ranks = job
        begin(ranks)
        ranks.tell("reduce_until_error", (0, 2))
        check(ranks.hear((0, 2)), "DeadlineError", [1])
        told = ranks.make("reduce_until_error", (1,))
        check(told, "DeadlineError", [])
        assert told[1]["says"].startswith("No rank is missing, but the network or a rank's own work took longer than ")
        begin(ranks)

    def test_whose_port_is_too_slow_for_the_deadline(self, job):
        lab, ranks = job
        begin(ranks)
        lab.set_rate(1, 1)
        told = ranks.make("reduce_until_error")
        lab.set_rate(200, 1)
        check(told, "DeadlineError", ranks.all)
        begin(ranks)

    def test_that_holds_the_store_and_is_killed(self, build):
        """The others hear it at once. Without the store they cannot agree on the lost ranks, nor go on, and raise."""
        with Ranks(build(star(200, 200, 200)), 3, store_outside=False) as ranks:
            begin(ranks)
            begin(ranks)  # the store that rank 0 has made serves again
            for rank, one in self._kill_first(ranks).items():
                assert one["error"] == "PeerLostError"
                assert one["ranks"] in ([0], [3 - rank], [0, 3 - rank])
                unexplained = (
                    "broke, and nobody says why, so this call did not happen: outputs are as they were. On gloo ranks "
                    "tell each other by PyTorch's store: whoever held it, usually rank 0 or torchrun, may have ended "
                    "or be out of reach. Let all ranks connect again."
                )
                # A rank that hears the other's word before it notices the broken connection knows which rank is lost.
                told_by_other = str(PeerLostError.between_hosts(LOST, [0]))
                assert one["says"].endswith(unexplained) or one["says"] == told_by_other
            told = ranks.make("without", (1, 2), lost=[0], seconds=4)
            assert [one["error"] for one in told.values()] == ["ConnectError"] * 2
            assert all("PyTorch's store has failed this rank" in one["says"] for one in told.values()), told

    def test_that_is_killed_while_another_holds_the_store(self, build):
        """No rank holds the store, as under torchrun: the others go on."""
        with Ranks(build(star(200, 200, 200)), 3) as ranks:
            begin(ranks)
            check(self._kill_first(ranks), "PeerLostError", [0])
            assert ranks.make("without", (1, 2), lost=[0]) == {1: 2, 2: 2}
            assert ranks.make("reduce", (1, 2)) == {1: 6, 2: 6}

    def _kill_first(self, ranks):
        ranks.tell("reduce_until_error")
        time.sleep(_UNDER_WAY_S)
        ranks.job.kill(0)
        told = ranks.hear((1, 2))
        assert all(one["is_as_it_was"] and one["late"] < 0 for one in told.values())
        return told
