import copy
import dataclasses

import numpy as np
import optree
import pytest

from treefold import HierarchicalCopyAllReduce, PerReplica, ReductionToOneDevice, all_reduce, broadcast
from treefold.errors import ArgumentError, MismatchError

OPS = ReductionToOneDevice()
TOO_DEEP = r"^A value is nested more than 1000 levels deep, or contains itself\. Bring its arrays in a list or dict\.$"
INCOMPARABLE = (
    r"^Two structures cannot be compared, because == of the static data of a pytree class does not give a bool\. "
    r"Bring arrays as children of their class, not as static data\.$"
)


@dataclasses.dataclass
class Link:
    """A chain of these is as deep as it is long."""

    inner: object


@optree.register_pytree_node_class(namespace="treefold")
class Masked:
    """An array, and a mask that is no child."""

    def __init__(self, array, mask):
        self.array, self.mask = array, mask

    def __tree_flatten__(self):
        """Return the child, and what is static."""
        return (self.array,), self.mask, ("array",)

    @classmethod
    def __tree_unflatten__(cls, mask, children):
        return cls(*children, mask)


def nested(levels, wrap):
    """Return an array inside this many levels."""
    value = np.ones(2)
    for _ in range(levels):
        value = wrap(value)
    return value


def cyclic(kind):
    if kind is Link:
        value = Link(1.0)
        value.inner = value
        return value
    value = kind()
    if kind is list:
        value += [np.ones(2), value]
    else:
        value["self"] = value
    return value


WRAPS = {"list": lambda v: [v], "tuple": lambda v: (v,), "dict": lambda v: {"a": v}, "dataclass": Link}
CALLS = {
    "reduce": lambda value: OPS.reduce("sum", PerReplica([value, value]), "cpu:0"),
    "all_reduce in place": lambda value: all_reduce([value, value], out=[value, value]),
    "out": lambda value: OPS.reduce("sum", PerReplica([1.0, 2.0]), "cpu:0", out=PerReplica([value])),
    "destinations": lambda value: OPS.reduce("sum", PerReplica([1.0, 2.0]), PerReplica([value])),
    "broadcast": lambda value: broadcast(value, "cpu:0"),
    "gather": lambda value: OPS.gather(PerReplica([value, value]), "cpu:0", 0),
    "plan": lambda value: HierarchicalCopyAllReduce().plan(PerReplica([value, value]), "cpu:0"),
    "devices": lambda value: PerReplica([value]).devices,
}


class TestDepth:
    @pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
    @pytest.mark.parametrize("kind", [list, dict, Link])
    def test_without_end_is_refused(self, call, kind):
        with pytest.raises(ArgumentError, match=TOO_DEEP):
            call(cyclic(kind))

    @pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)
    def test_has_a_bound(self, wrap):
        value = nested(990, wrap)
        assert all_reduce([value, value])
        with pytest.raises(MismatchError, match=r"^Replica 1 has nothing at "):
            all_reduce([value, nested(989, wrap)])
        with pytest.raises(ArgumentError, match=TOO_DEEP):
            all_reduce([nested(1001, wrap)] * 2)


class TestStaticData:
    @pytest.mark.parametrize("mask", [np.array([1, 0]), (np.array([1, 0]),), {"m": np.array([1, 0])}], ids=repr)
    @pytest.mark.parametrize("call", ["reduce", "out", "plan", "gather"])
    def test_that_cannot_be_compared_is_refused(self, mask, call):
        value, other = (PerReplica([Masked(np.ones(2), copy.deepcopy(mask)) for _ in range(2)]) for _ in range(2))
        calls = {
            "reduce": lambda: OPS.reduce("sum", value, value),
            "out": lambda: OPS.reduce("sum", PerReplica([value[0]]), "cpu:0", out=PerReplica([other[0]])),
            "plan": lambda: OPS.plan(value, value),
            "gather": lambda: OPS.gather(value, "cpu:0", 0),
        }
        with pytest.raises(ArgumentError, match=INCOMPARABLE):
            calls[call]()

    def test_of_one_component_is_compared_with_nothing(self):
        [made] = broadcast(Masked(np.arange(2.0), np.array([1, 0])), "cpu:0")
        assert np.array_equal(made.array, [0, 1])
        assert np.array_equal(made.mask, [1, 0])

    def test_does_not_get_in_the_way_of_later_calls(self):
        """Calls seen before are told apart by it where it can be compared, and are other calls where it cannot."""
        ops = ReductionToOneDevice()
        for mask in (np.array([1, 0]), np.array([1, 0, 1]), (1, 0), [1, 0], "mask"):
            for _ in range(2):
                [made] = ops.reduce("sum", PerReplica([Masked(np.arange(2.0), mask)]), "cpu:0")
                assert made.mask is mask
                assert np.array_equal(made.array, [0, 1])

    def test_that_differs_is_another_structure(self):
        with pytest.raises(
            MismatchError,
            match=r"^Replica 1 has a Masked of another structure, or of other static data, than replica 0's\. Every",
        ):
            all_reduce([Masked(1.0, "one"), Masked(2.0, "two")])
