"""Ranks that call different things: all hear both sides at once, nothing has moved, and the group goes on."""

import functools

import numpy as np
import pytest
import rank_processes
from rank_processes import World

from treefold import IndexedSlices, PerReplica
from treefold.group import reductions
from treefold.group.plans import GroupPlans

told = functools.partial(rank_processes.told, also=(TypeError, ValueError))
_FLOATS = np.arange(6, dtype=np.float32)
_MANY = np.arange(60_000, dtype=np.float32)


def _calls():
    """Return calls by name, each of a group."""
    return {
        "sum": lambda group: group.all_reduce(_FLOATS),
        "max": lambda group: group.all_reduce(_FLOATS, "max"),
        "sum of float64": lambda group: group.all_reduce(_FLOATS.astype(np.float64)),
        "sum of 5": lambda group: group.all_reduce(_FLOATS[:5]),
        "sum of many": lambda group: group.all_reduce(_MANY),
        "sum of many that are shared": lambda group: group.all_reduce(_shared(group)),
        "sum of a list": lambda group: group.all_reduce([_FLOATS]),
        "sum of a dict": lambda group: group.all_reduce({"a": _FLOATS}),
        "sum of a dict with another key": lambda group: group.all_reduce({"b": _FLOATS}),
        "sum of a dict with an address for a key": lambda group: group.all_reduce({"f at 0x1": _FLOATS}),
        "sum of a dict with another address for a key": lambda group: group.all_reduce({"f at 0x2": _FLOATS}),
        "sum of a dict with a long key": lambda group: group.all_reduce({"ä" * 300: _FLOATS}),
        "mean": lambda group: group.all_reduce(_FLOATS, "mean"),
        "mean with weights": lambda group: group.all_reduce(_FLOATS, "mean", weights=2.0),
        "reduce to 0": lambda group: group.reduce(_FLOATS, root=0),
        "reduce to 1": lambda group: group.reduce(_FLOATS, root=1),
        "broadcast from 0": lambda group: group.broadcast(_FLOATS, root=0),
        "broadcast from 1": lambda group: group.broadcast(_FLOATS, root=1),
        "broadcast of nothing": lambda group: group.broadcast(None, root=0),
        "sum of rows": lambda group: group.all_reduce(_rows((9, 3))),
        "sum of rows of a larger array": lambda group: group.all_reduce(_rows((10, 3))),
        "all_gather": lambda group: group.all_gather(_FLOATS.reshape(2, 3)),
        "all_gather along 1": lambda group: group.all_gather(_FLOATS.reshape(2, 3), axis=1),
        "reduce_scatter": lambda group: group.reduce_scatter([_FLOATS]),
        "reduce_scatter of a tuple": lambda group: group.reduce_scatter((_FLOATS,)),
        "barrier": lambda group: group.barrier(),
    }


def _rows(dense_shape):
    return IndexedSlices(_FLOATS.reshape(2, 3), np.arange(2), dense_shape)


def _shared(group):
    shared = group.empty(_MANY.shape, np.float32)
    shared[:] = _MANY
    return shared


def call_differently(me, *, usual, other, odd):
    """Make a call, twice if it is known the second time; one rank makes another one. Then all make the same one."""
    calls = _calls()
    stories = []
    for _ in range(2):
        stories.append(told(calls[other if me.rank == odd else usual], me.group))
        assert me.group.all_reduce(np.float32(2**me.rank)) == 2**me.size - 1
        assert told(calls[usual], me.group) == "done"
    return stories


DIFFERENT = [
    (
        "sum",
        "max",
        "Rank {} calls all_reduce, {}, of float32 (6,), while rank 0 calls all_reduce, {}, of float32 (6,).",
    ),
    ("sum", "sum of float64", "float64 (6,)"),
    ("sum", "sum of 5", "float32 (5,)"),
    ("sum", "sum of many", "float32 (60000,)"),
    ("sum of many that are shared", "sum", "float32 (6,)"),
    ("sum", "sum of a list", "[0]"),
    ("sum of a dict", "sum of a dict with another key", "['b']"),
    ("sum of a dict", "sum of a dict with a long key", "ää"),
    ("sum of a dict with an address for a key", "sum of a dict with another address for a key", "0x2"),
    ("sum", "mean", "MEAN"),
    ("mean", "mean with weights", "all_reduce with weights, MEAN, of float32 (6,)"),
    ("reduce to 0", "reduce to 1", "reduce to rank 1"),
    ("broadcast from 0", "broadcast from 1", "broadcast from rank 1"),
    ("broadcast from 0", "broadcast of nothing", "of nothing"),
    ("sum of rows", "sum of rows of a larger array", "IndexedSlices of (10, 3)"),
    ("all_gather", "all_gather along 1", "along axis 1"),
    ("all_gather", "barrier", "barrier"),
    ("reduce_scatter", "reduce_scatter of a tuple", "of other leaves, options or names"),
    ("barrier", "sum of many", "barrier"),
]


class TestDifferentCalls:
    @pytest.mark.parametrize("odd", [0, 1, 2])
    @pytest.mark.parametrize(
        ("usual", "other", "says"), DIFFERENT, ids=lambda one: one if len(str(one)) < 40 else "words"
    )
    def test_all_ranks_show_both_sides_and_go_on(self, ranks, usual, other, says, odd):
        ended = ranks.run(World(call_differently, 3, {"usual": usual, "other": other, "odd": odd}))
        assert all(one.error is None for one in ended), ended
        stories = {story for one in ended for story in one.value}
        assert len(stories) == 1, stories
        ((name, sentence),) = stories
        assert name == "CallMismatchError"
        if "{}" not in says:
            assert says in sentence
        first = odd or 1
        assert sentence.startswith((f"Rank {first} calls ", f"Ranks {first} and 0 both call "))
        assert sentence.endswith("All ranks of a group make the same calls in the same order. Nothing was done.")


class Unreadable:
    """A value that fails while it is read, in words that no encoding has."""

    @property
    def __array_interface__(self):
        raise ValueError("nobody can read this: \udcff" + "ä" * 600)

    @property
    def shape(self):
        raise ValueError("nobody can read this: \udcff" + "ä" * 600)


REFUSED = {
    "an op that there is not": lambda group: group.all_reduce(_FLOATS, "median"),
    "text": lambda group: group.all_reduce("text"),
    "something unreadable": lambda group: group.all_reduce(Unreadable()),
    "weights of a sum": lambda group: group.all_reduce(_FLOATS, "sum", weights=1.0),
    "more weights than replicas": lambda group: group.all_reduce(_FLOATS, "mean", weights=[1.0, 2.0]),
    "out of another shape": lambda group: group.all_reduce(_FLOATS, out=np.zeros(5, np.float32)),
    "a root that there is not": lambda group: group.reduce(_FLOATS, root=9),
    "an axis that there is not": lambda group: group.all_gather(_FLOATS, axis=3),
    "replicas that differ": lambda group: group.all_reduce(PerReplica([_FLOATS, _FLOATS[:3]])),
    "too many replicas": lambda group: group.all_reduce(PerReplica([_FLOATS] * 1025)),
    "a result without room": lambda group: group.all_reduce(np.zeros(200_000_000, np.int64)),
    "objects to broadcast": lambda group: group.broadcast(np.array([{}], object)),
    "an integer of many digits": lambda group: group.broadcast(2**70),
    "text to gather": lambda group: group.all_gather({"names": np.array(["a"])}),
}


def refuse_on_one(me, *, call, odd, usual):
    """Make a call that one rank refuses by itself, twice."""
    stories = []
    for _ in range(2):
        stories.append(told(REFUSED[call] if me.rank == odd else _calls()[usual], me.group))
        assert me.group.all_reduce(np.float32(2**me.rank)) == 2**me.size - 1
    return stories


def refuse_when_rows_are_joined(me):
    """Reduce rows and a dense array, for which rank 1 has no memory when the rows have crossed."""
    value = {"dense": np.full(60_000, 2.0**me.rank), "rows": _rows((9, 3))}
    with pytest.MonkeyPatch.context() as patched:
        if me.rank == 1:
            patched.setattr(reductions, "plain_rows", _refuse_memory)
        return told(me.group.all_reduce, value)


def _refuse_memory(_):
    raise ValueError("no memory for a copy.")


class TestRefusedCalls:
    def test_in_the_middle_of_a_call_end_the_group(self, ranks):
        """Sparse rows have crossed, dense arrays have not: the others do not wait for these."""
        ended = ranks.run(World(refuse_when_rows_are_joined, 3, timeout_seconds=20.0))
        assert ended[1].value == ("ValueError", "no memory for a copy.")
        for other in (ended[0].value, ended[2].value):
            assert other[0] == "PeerLostError"
            assert other[1].startswith("Rank 1 has left the group with an error, so this call did not happen: ")

    @pytest.mark.parametrize("usual", ["sum", "barrier"])
    @pytest.mark.parametrize("call", REFUSED)
    def test_all_others_hear_why_at_once_and_the_group_goes_on(self, ranks, call, usual):
        """Any error that a rank raises before its call reaches the others, which wait for it."""
        ended = ranks.run(World(refuse_on_one, 3, {"call": call, "odd": 1, "usual": usual}, seconds=30))
        assert all(one.error is None for one in ended), ended
        own = ended[1].value
        assert all(story != "done" for story in own), own
        assert ended[0].value == ended[2].value
        for (name, sentence), (_, reason) in zip(ended[0].value, own, strict=True):
            assert name == "CallMismatchError"
            assert sentence.startswith("Rank 1 could not make this call: "), sentence
            assert sentence.endswith(" Nothing was done, on no rank.")
            assert reason.encode(errors="replace").decode()[:150] in sentence


def refuse_on_all(me, *, call):
    story = told(REFUSED[call], me.group)
    assert me.group.all_reduce(np.float32(2**me.rank)) == 2**me.size - 1
    return story


class TestCallsThatAllRefuse:
    @pytest.mark.parametrize("call", REFUSED)
    def test_each_raises_its_own_error(self, ranks, call):
        ended = ranks.run(World(refuse_on_all, 3, {"call": call}, seconds=30))
        assert all(one.error is None for one in ended), ended
        assert len({one.value for one in ended}) == 1
        assert ended[0].value[0] != "CallMismatchError"

    def test_says_how_many_replicas_a_rank_may_bring(self, ranks):
        ended = ranks.run(World(refuse_on_all, 2, {"call": "too many replicas"}, seconds=30))
        sentence = "This rank brings 1025 replicas. In a group, a rank brings 1024 at most; reduce them first."
        assert [one.value for one in ended] == [("ArgumentError", sentence)] * 2


def plan_again_and_again(me):
    """Bring arrays that rank 1 cannot recognise, because they are not contiguous, and other numbers of replicas."""
    wide = np.arange(2 * 40_000, dtype=np.float32)
    mine = wide[::2] if me.rank == 1 else wide[::2].copy()
    sums = []
    for turn in range(8):
        many = turn % 3 == me.rank
        value = PerReplica([mine, mine]) if many else mine
        sums.append(float(me.group.all_reduce(value)[1]))
    return sums


def differ_in_their_plans(me):
    """Have another plan on rank 1 than on the others, for the same call."""
    if me.rank == 1:
        number = GroupPlans.number.fget
        GroupPlans.number = property(lambda plans: number(plans) ^ 2)
    story = told(me.group.all_reduce, _MANY)
    me.group.barrier()
    return story


class TestPlans:
    def test_ranks_of_which_one_recognises_no_call_plan_with_the_others(self, ranks):
        """Whoever has a plan goes on with whoever has none yet, also when numbers of replicas change."""
        ended = ranks.run(World(plan_again_and_again, 3))
        assert [one.value for one in ended] == [[8.0, 8.0, 8.0] * 2 + [8.0, 8.0]] * 3, ended

    def test_ranks_that_plan_differently_all_say_so(self, ranks):
        """It is an error of the installation, and no endless planning."""
        ended = ranks.run(World(differ_in_their_plans, 3, seconds=20))
        assert [one.value[0] for one in ended] == ["CallMismatchError"] * 3, ended
        assert "Ranks plan this call differently" in ended[0].value[1]


def call_once_more(me, *, calls):
    """Rank 1 makes one call more than the others, or one less; all others make another call after it."""
    me.group._link.timeout_seconds = 1.0
    for _ in range(calls[me.rank]):
        me.group.all_reduce(_FLOATS)
    if me.rank == 1:
        me.wait_flag(0)
        return "late"
    try:
        me.group.barrier()
    finally:
        me.flag(0, 1)
    return None


class TestMissingCalls:
    def test_a_rank_that_does_not_call_is_named_at_the_deadline(self, ranks):
        ended = ranks.run(World(call_once_more, 3, {"calls": [2, 2, 2]}))
        assert {ended[rank].error[0] for rank in (0, 2)} == {"DeadlineError"}, ended
        assert "Rank 1 had not come by the deadline" in ended[0].error[1]
        assert ended[0].error == ended[2].error

    def test_a_rank_that_calls_once_more_shows_what_it_calls(self, ranks):
        """Its call meets the next one of the others."""
        ended = ranks.run(World(call_once_more, 3, {"calls": [2, 3, 2]}))
        assert {one.error[0] for one in ended} == {"CallMismatchError"}, ended
        assert "Rank 1 calls all_reduce, SUM, of float32 (6,), while rank 0 calls barrier." in ended[0].error[1]
