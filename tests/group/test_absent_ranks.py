"""Ranks of one host that do not come, come with something else, or give up before there is a group."""

import contextlib
import signal
import time

import pytest
from rank_processes import World

from treefold import _native
from treefold.errors import GroupError
from treefold.group import Ticket, connect, connecting
from treefold.group.rendezvous import Client, Waiting

if not _native.HAS_SHARED_MEMORY:
    pytest.skip("this system has no shared memory of the kind that groups need", allow_module_level=True)


def heard(me, seconds):
    """Connect; return what is raised, its sentence and whom it blames."""
    try:
        me.group = connect(me.ticket, connect_timeout_seconds=seconds)
    except (GroupError, KeyboardInterrupt, MemoryError) as error:
        return type(error).__name__, str(error), getattr(error, "ranks", ())
    return "done"


def connect_briefly(me, *, absent, seconds):
    """Connect, but for ranks that do not come."""
    return None if me.rank in absent else heard(me, seconds)


def give_up(me, *, victim, error):
    """Connect, all but rank 3, which does not come; when the others are in, something is raised on one of them."""

    def fail(*_):
        if victim:
            me.wait_flag(2)
            time.sleep(0.3)  # until rank 0 has let it in
        raise {"KeyboardInterrupt": KeyboardInterrupt, "MemoryError": MemoryError("no room")}[error]

    if me.rank == victim == 0:
        admit = connecting.Listener._admit
        connecting.Listener._admit = lambda self, *given: (admit(self, *given), len(self._members) == 2 and fail())
    elif me.rank == victim:
        Client.join = fail
    elif me.rank == 2:
        join = Client.join
        Client.join = lambda self: (me.flag(2, 1), join(self))[1]
    return None if me.rank == 3 else heard(me, 20)


def raise_own_timeout(me):
    """Connect, as a script does whose own alarm raises a TimeoutError while it waits for rank 1; return that."""

    def gather(*_):
        raise TimeoutError(me.rank)

    connecting.Listener.gather = gather
    try:
        return connect(me.ticket, connect_timeout_seconds=20) if me.rank == 0 else None
    except TimeoutError as error:
        return error.args


def run_out_of_time(me):
    """Connect; rank 2 does not come, and rank 1 waits for a shorter time than rank 0."""
    return None if me.rank == 2 else heard(me, (20, 0.5)[me.rank])


def connect_with_guarantees(me):
    """Connect, rank 1 with another guarantee."""
    me.group = connect(me.ticket, connect_timeout_seconds=30, guarantee="per_plan" if me.rank == 1 else "replica_order")


def fail_while_connecting(me, *, kind, victim):
    """Connect, all but rank 3; one rank says who it is, or listens, and ends when others have done so."""
    if me.rank == victim == 0:
        admit = connecting.Listener._admit

        def admit_and_fail(*arguments):
            admit(*arguments)
            connecting.Listener._admit = admit  # once: whoever goes on hears the others out
            me.fail(kind)

        connecting.Listener._admit = admit_and_fail
    elif me.rank == victim:
        waiting = Waiting(time.monotonic() + 30, 30)
        with contextlib.closing(Client(Ticket.read(me.ticket), connecting._agreed("replica_order"), waiting)):
            me.wait_flag(2)
            time.sleep(0.3)  # until rank 0 has let rank 2 in
            me.fail(kind)
    elif me.rank == 2:
        join = Client.join
        Client.join = lambda self: (me.flag(2, 1), join(self))[1]
    return None if me.rank == 3 else heard(me, 20 if kind == "kill" else 2)


def fail_after_mapping(me, *, kind):
    """Connect; rank 1 ends when it has mapped the memory and has not said so."""
    if me.rank == 1:
        Client.settle = lambda *_: me.fail(kind)
    return heard(me, 2)


class TestRanksThatDoNotCome:
    def test_are_named_at_the_deadline_on_all_ranks(self, ranks):
        """Whoever is there hears who is not."""
        world = World(connect_briefly, 4, {"absent": (1, 3), "seconds": 0.5}, timeout_seconds=None)
        ended = ranks.run(world)
        sentence = "Ranks 1, 3 did not connect within 500 ms. Start all ranks, or give connect a larger "
        sentence += "connect_timeout_seconds."
        assert ended[0].value == ("ConnectError", sentence, (1, 3))
        assert ended[2].value == ("ConnectError", f"The group did not form: {sentence}", (1, 3))

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
        """All others that are there raise the same, at once."""
        ended = ranks.run(World(give_up, 4, {"victim": victim, "error": error}, timeout_seconds=None))
        sentence = f"The group did not form: rank {victim} has given up: {words}."
        told = [one.value for one in ended[:3]]
        assert told.pop(victim)[0] == error
        assert told == [("ConnectError", sentence, (victim,))] * 2

    def test_a_users_own_timeout_comes_out_as_it_is(self, ranks):
        """It is no error of the system."""
        assert ranks.run(World(raise_own_timeout, 2, timeout_seconds=None))[0].value == (0,)

    def test_a_rank_whose_own_time_is_over_blames_nobody(self, ranks):
        """The others hear of it as well."""
        ended = ranks.run(World(run_out_of_time, 3, timeout_seconds=None))
        sentence = (
            "The group did not form: the connect_timeout_seconds of rank 1 (500 ms), or of another rank, was over "
            "before all ranks were connected. Give connect more time on all ranks."
        )
        assert [one.value for one in ended[:2]] == [("ConnectError", sentence, ())] * 2

    def test_other_options_are_named_on_all_ranks(self, ranks):
        """Both values are shown."""
        ended = ranks.run(World(connect_with_guarantees, 2, timeout_seconds=None))
        sentence = "The group did not form: rank 1 has guarantee 'per_plan' where rank 0 has 'replica_order'."
        assert [one.error for one in ended] == [("ConnectError", sentence)] * 2

    @pytest.mark.parametrize(("victim", "says"), [(0, "rank 0 has turned this rank away, or has ended"), (1, "gone")])
    def test_a_rank_that_ends_in_between_ends_the_attempt_of_all(self, ranks, victim, says):
        """Nobody waits for the deadline, and nobody gets a group with a rank that has ended."""
        arguments = {"kind": "kill", "victim": victim}
        ended = ranks.run(World(fail_while_connecting, 4, arguments, timeout_seconds=None, may_leave=("folder",)))
        assert ended[victim].signal == signal.SIGKILL
        told = [one.value for one in ended[:3] if one.rank != victim]
        assert all(says in sentence and blamed == (victim,) for _, sentence, blamed in told), ended

    @pytest.mark.parametrize(
        ("kind", "says"), [("kill", "rank 1 has gone"), ("stop", "Rank 1 did not connect within 2 s")]
    )
    def test_a_rank_that_does_not_say_that_it_is_ready_ends_the_attempt_of_all(self, ranks, kind, says):
        """It has mapped the memory, and is named."""
        ended = ranks.run(World(fail_after_mapping, 3, {"kind": kind}, timeout_seconds=None))
        told = [ended[rank].value for rank in (0, 2)]
        assert all(says in sentence and blamed == (1,) for _, sentence, blamed in told), ended

    def test_rank_0_that_stops_keeps_nobody_beyond_the_deadline(self, ranks):
        """The others cannot tell whether it is to blame."""
        arguments = {"kind": "stop", "victim": 0}
        ended = ranks.run(World(fail_while_connecting, 3, arguments, timeout_seconds=None))
        for rank in (1, 2):
            own = f"the connect_timeout_seconds of rank {rank} (2 s), or of another rank, was over"
            assert (own in ended[rank].value[1], ended[rank].value[2]) == (True, ()), ended
