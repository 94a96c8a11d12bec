"""Calls that move values, on one host and over hosts: ``out=``, scatters, exchanges."""

import fake_groups
import numpy as np
import pytest
from rank_processes import World, told

from treefold.testing import owned


def of(rank, *shape, dtype="float32"):
    return owned(rank, shape, dtype) if shape else np.asarray(2**rank, dtype)


def rows(rank, other, count):
    """Return ``count`` rows of two that hold their sender, receiver and number."""
    return [[100 * rank + 10 * other + row, -1] for row in range(count)]


def usable(group):
    return float(group.all_reduce(np.float32(2**group.rank))) == 2**group.size - 1


def broadcast_into(group):
    """Into the value itself on rank 0, into strides on the others; and not where it does not fit."""
    value = of(group.rank, 3, 2)
    out = value if group.rank == 0 else np.zeros((3, 4), np.float32)[:, ::2]
    made = group.broadcast(value, 1, out=out)
    wrong = told(group.broadcast, value, 1, out=np.zeros(3, np.float32) if group.rank == 1 else out)
    return made is out, bool((out == of(1, 3, 2)).all()), wrong[0], usable(group)


def gather_into(group, axis):
    """Into one array, of which the value is a part; into one on rank 1 only."""
    count = sum(range(1, group.size + 1))
    whole = np.zeros((count, 2) if axis == 0 else (2, count), np.float32)
    at = slice(sum(range(1, group.rank + 1)), sum(range(1, group.rank + 2)))
    part = whole[at] if axis == 0 else whole[:, at]
    part[...] = 2**group.rank
    made = group.all_gather(part, axis, out=whole)
    expected = [2**rank for rank in range(group.size) for _ in range(rank + 1)]
    found = [
        made is whole,
        (whole[:, 0] if axis == 0 else whole[0]).tolist() == expected,
        len(np.unique(whole)) == group.size,
    ]
    kept = np.full_like(whole, -1)
    made = group.gather(part.copy(), 1, axis, out=kept)
    return [*found, made is None, bool((kept == (whole if group.rank == 1 else -1)).all())]


def gather_into_too_little(group):
    """Rank 1's array is too short: every rank hears it."""
    value = of(group.rank, 2)
    out = np.full(2 * group.size - (group.rank == 1), -1, np.float32)
    wrong = told(group.all_gather, value, out=out)
    return wrong, bool((out == -1).all()), usable(group)


def reduce_scatter_into(group, op):
    """Into this rank's part of the value itself."""
    value = {"a": of(group.rank, 2 * group.size, 3, dtype="float64")}
    total = np.add.reduce([of(rank, 2 * group.size, 3, dtype="float64") for rank in range(group.size)])
    own = slice(2 * group.rank, 2 * group.rank + 2)
    out = {"a": value["a"][own]}
    made = group.reduce_scatter(value, op, out=out)
    expected = total[own] if op == "sum" else total[own] / group.size
    wrong = told(group.reduce_scatter, value, op, out={"a": np.zeros(2 if group.rank == 0 else (2, 3))})
    return made["a"] is out["a"], bool((out["a"] == expected).all()), wrong[0], usable(group)


def scatter(group, root, axis, lengths, length):
    """Parts of lengths that differ; the rest of a row is ``length`` long."""
    whole = np.concatenate([np.full((count, length), 2**rank) for rank, count in enumerate(lengths)])
    own = np.zeros((lengths[group.rank], length), whole.dtype)
    value = whole if group.rank == root else own
    value, own = (np.moveaxis(one, 0, axis) for one in (value, own))
    new = group.scatter({"a": value, "b": None}, root, axis)["a"]
    taken = group.scatter(value, root, axis, out=own)
    return taken is own, new.tolist() == own.tolist(), own.shape[axis], np.unique(own).tolist()


def scatter_wrongly(group, what):
    """Call with an expectation on one rank that does not fit."""
    value = np.zeros((6, 2), np.float32) if group.rank == 0 else np.zeros((2, 2), np.float32)
    if group.rank == 1:
        value = {"dtype": value.astype(np.int32), "row": value[:, :1], "length": np.zeros((7, 2), np.float32)}[what]
    return told(group.scatter, value, 0), usable(group)


def exchange(group, axis):
    """Rank r sends r + s rows to rank s; then equal parts, in place, and back as a stream of several parts."""
    lengths = [group.rank + other for other in range(group.size)]
    value = np.array([row for other, count in enumerate(lengths) for row in rows(group.rank, other, count)]).reshape(
        -1, 2
    )
    made = group.all_to_all([np.moveaxis(value, 0, axis)], axis, lengths=lengths)[0]
    expected = [row for other in range(group.size) for row in rows(other, group.rank, group.rank + other)]
    found = [np.moveaxis(made, axis, 0).tolist() == expected]
    out = np.zeros_like(made)
    found += [group.all_to_all(np.moveaxis(value, 0, axis), axis, lengths=lengths, out=out) is out, (out == made).all()]
    equal = np.arange(group.size) + 10 * group.rank
    group.all_to_all(equal, out=equal)
    found.append((equal == 10 * np.arange(group.size) + group.rank).all())
    group.link.result_bytes = 12  # so that the way back takes several parts, which end inside of elements
    group.all_to_all(equal, out=equal)
    return [bool(one) for one in (*found, (equal == np.arange(group.size) + 10 * group.rank).all())]


def exchange_wrongly(group, what):
    """Rank 1 brings what does not fit."""
    value, options = np.zeros((group.size, 2), np.float32), {}
    if group.rank == 1:
        if what == "dtype":
            value = value.astype(np.float64)
        elif what == "row":
            value = value[:, :1]
        elif what == "room":
            options = {"out": np.zeros((1, 2), np.float32)}
        elif what == "lengths":
            options = {"lengths": [1, 2, 3]}
        else:
            value = np.zeros((group.size + 1, 2), np.float32)
    return told(group.all_to_all, value, **options), usable(group)


def on_one_host(me, *, body, arguments):
    return globals()[body](me.group, *arguments)


@pytest.fixture(params=["one host", "hosts"])
def calls(request, ranks):
    """Runs a body on three ranks, of one host or on a host each, and returns their results."""

    def run(body, *arguments, size=3):
        if request.param == "hosts":
            return fake_groups.run(size, lambda group: body(group, *arguments))[1]
        world = World(on_one_host, size, {"body": body.__name__, "arguments": arguments})
        ended = ranks.run(world)
        assert all(one.error is None for one in ended), ended
        return [one.value for one in ended]

    return run


class TestBroadcast:
    def test_into_out(self, calls):
        kinds = ["CallMismatchError", "OutputError", "CallMismatchError"]
        assert calls(broadcast_into) == [(True, True, kind, True) for kind in kinds]


class TestGather:
    @pytest.mark.parametrize("axis", [0, 1, -1])
    def test_into_out(self, calls, axis):
        assert calls(gather_into, axis) == [[True, True, True, rank != 1, True] for rank in range(3)]

    def test_into_an_array_of_another_length(self, calls):
        sentence = "Rank 1 has an out of length 5 along axis 0, and the result has 6 there. Nothing was done."
        assert calls(gather_into_too_little) == [(("MismatchError", sentence), True, True)] * 3


class TestReduceScatter:
    @pytest.mark.parametrize("op", ["sum", "mean"])
    def test_into_out(self, calls, op):
        kinds = ["OutputError", "CallMismatchError", "CallMismatchError"]
        assert calls(reduce_scatter_into, op) == [(True, True, kind, True) for kind in kinds]


class TestScatter:
    @pytest.mark.parametrize("lengths", [(2, 2, 2), (1, 0, 4), (0, 0, 3)])
    @pytest.mark.parametrize(("root", "axis"), [(0, 0), (2, 1)])
    def test_parts_of_any_length(self, calls, root, axis, lengths):
        expected = [(True, True, count, [2**rank][:count]) for rank, count in enumerate(lengths)]
        assert calls(scatter, root, axis, lengths, 5) == expected

    def test_of_nothing(self, calls):
        assert calls(scatter, 0, 0, (1, 2, 3), 0) == [(True, True, count, []) for count in (1, 2, 3)]

    @pytest.mark.parametrize(
        ("what", "kind", "sentence"),
        [
            ("dtype", "CallMismatchError", "Ranks 1 and 0 both call scatter along axis 0, of other leaves"),
            ("row", "MismatchError", "Rank 1 expects float32 (2, 1) and the root scatters float32 (6, 2), both with "),
            (
                "length",
                "MismatchError",
                "The other ranks expect parts of 9 in all along axis 0, and the root's value has 6 there.",
            ),
        ],
    )
    def test_that_do_not_fit(self, calls, what, kind, sentence):
        for (found, says), works in calls(scatter_wrongly, what):
            assert (found, works) == (kind, True)
            assert says.startswith(sentence)


class TestAllToAll:
    @pytest.mark.parametrize("axis", [0, 1])
    def test_parts_of_any_length(self, calls, axis):
        assert calls(exchange, axis) == [[True] * 5] * 3

    @pytest.mark.parametrize(
        ("what", "kinds", "sentence"),
        [
            ("dtype", ["CallMismatchError"] * 3, "Ranks 1 and 0 both call all_to_all along axis 0, of other leaves"),
            (
                "row",
                ["MismatchError"] * 3,
                "Rank 1 exchanges float32 (3, 1) and rank 0 float32 (3, 2), both with axis 0",
            ),
            ("room", ["MismatchError"] * 3, "Rank 1 has an out of length 1 along axis 0, and the result has 3 there."),
            (
                "lengths",
                ["CallMismatchError", "ArgumentError", "CallMismatchError"],
                "all_to_all got lengths=[1, 2, 3]. It takes 3 whole numbers, 0 or more, one for each rank, whose sum "
                "is the length of the axis, 3 here.",
            ),
            (
                "shape",
                ["CallMismatchError", "ArgumentError", "CallMismatchError"],
                "all_to_all cannot cut an array of shape (4, 2) along axis 0 into 3 equal parts.",
            ),
        ],
    )
    def test_that_do_not_fit(self, calls, what, kinds, sentence):
        found = calls(exchange_wrongly, what)
        assert [kind for (kind, _), _ in found] == kinds
        assert found[1][0][1].startswith(sentence)
        assert all(works for _, works in found)
