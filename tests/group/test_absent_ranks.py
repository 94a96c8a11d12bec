"""Ranks of one host that do not come, come with something else, or give up before there is a group."""

import time

import pytest
from rank_processes import World

from treefold.errors import GroupError
from treefold.group import connect
from treefold.group.bootstrap.rendezvous import Client, Listener


def heard(me, seconds):
    """Connect; return the error, its sentence and the ranks that it blames."""
    try:
        me.group = connect(me.ticket, connect_timeout_seconds=seconds)
    except (GroupError, KeyboardInterrupt, MemoryError) as error:
        return type(error).__name__, str(error), getattr(error, "ranks", ())
    return "done"


def connect_briefly(me, *, absent, seconds):
    return None if me.rank in absent else heard(me, seconds)


def give_up(me, *, victim, error):
    """Connect, all but rank 3, which does not come; when the others are in, something is raised on one of them."""

    def fail(*_):
        if victim:
            me.wait_flag(2)
            time.sleep(0.3)  # until rank 0 has let it in
        raise {"KeyboardInterrupt": KeyboardInterrupt, "MemoryError": MemoryError("no room")}[error]

    if me.rank == victim == 0:
        admit = Listener._admit
        Listener._admit = lambda self, *given: (admit(self, *given), len(self._members) == 2 and fail())
    elif me.rank == victim:
        Client._next = fail
    elif me.rank == 2:
        next_message = Client._next
        Client._next = lambda self: (me.flag(2, 1), next_message(self))[1]
    return None if me.rank == 3 else heard(me, 20)


def connect_with_guarantees(me):
    me.group = connect(me.ticket, connect_timeout_seconds=30, guarantee="per_plan" if me.rank == 1 else "exact")


class TestRanksThatDoNotCome:
    def test_are_named_at_the_deadline_on_all_ranks(self, ranks):
        world = World(connect_briefly, 4, {"absent": (1, 3), "seconds": 0.5}, timeout_seconds=None)
        ended = ranks.run(world)
        sentence = "Ranks 1, 3 did not connect within 500 ms. Start all ranks, or give connect a larger "
        sentence += "connect_timeout_seconds."
        assert ended[0].value == ("ConnectError", sentence, (1, 3))
        assert ended[2].value == ("ConnectError", f"The group did not form: rank 0 has given up: {sentence}", (1, 3))

    def test_rank_0_is_named_where_it_does_not_come(self, ranks):
        """The others have nobody to connect to."""
        world = World(connect_briefly, 2, {"absent": (0,), "seconds": 0.3}, timeout_seconds=None, may_leave=("folder",))
        _, sentence, blamed = ranks.run(world)[1].value
        assert ("Rank 0 did not connect" in sentence, blamed) == (True, (0,))

    @pytest.mark.parametrize("victim", [0, 1])
    @pytest.mark.parametrize(
        ("error", "words"), [("KeyboardInterrupt", "KeyboardInterrupt"), ("MemoryError", "MemoryError no room")]
    )
    def test_a_rank_that_gives_up_says_why(self, ranks, victim, error, words):
        ended = ranks.run(World(give_up, 4, {"victim": victim, "error": error}, timeout_seconds=None))
        sentence = f"The group did not form: rank {victim} has given up: {words}."
        told = [one.value for one in ended[:3]]
        assert told.pop(victim)[0] == error
        assert told == [("ConnectError", sentence, (victim,))] * 2

    def test_other_options_are_named_on_all_ranks(self, ranks):
        ended = ranks.run(World(connect_with_guarantees, 2, timeout_seconds=None))
        sentence = "The group did not form: rank 1 has guarantee 'per_plan' where rank 0 has 'exact'."
        assert [one.error for one in ended] == [("ConnectError", sentence)] * 2
