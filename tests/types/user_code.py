"""Users' code, for type checkers: lines marked ``# error`` are mistakes, and no other line is one.

The functions named ``right_…`` also run: code that type checkers accept has to work.
"""

from typing import Any, assert_type

import numpy as np
from numpy.typing import NDArray

import treefold
from treefold import DistributedValues, HierarchicalCopyAllReduce, IndexedSlices, Mirrored, PerReplica, ReduceOp

Array = NDArray[np.float32]
Layers = dict[str, Array]


def gradients() -> list[Array]:
    """Return one array per replica; replica r brings 2**r."""
    return [np.full(3, 2.0**r, np.float32) for r in range(3)]


def models() -> list[Layers]:
    """Return one structure per replica."""
    return [{"kernel": gradient} for gradient in gradients()]


def right_short_forms() -> None:
    """A list in, a list of the same out; of distributed values, distributed values."""
    assert_type(treefold.all_reduce(gradients()), list[Array])
    assert_type(treefold.all_reduce(models(), "mean", weights=[1, 2, 1]), list[Layers])
    assert_type(treefold.all_reduce(models(), "mean", weights=np.array([1, 2, 1])), list[Layers])
    assert_type(treefold.all_reduce(tuple(gradients()), ReduceOp.MAX), list[Array])
    assert_type(treefold.all_reduce(PerReplica(gradients()), "avg"), Mirrored[Array])
    in_place = gradients()
    assert_type(treefold.all_reduce(in_place, out=in_place), list[Array])
    assert_type(treefold.reduce(gradients()), Array)
    assert_type(treefold.reduce(models(), "mean", to="cpu:1"), Layers)
    assert_type(treefold.broadcast(models()[0], ["cpu:0", "cpu:1"]), list[Layers])


def first_of_either(value: DistributedValues[Array | IndexedSlices]) -> Array | IndexedSlices:
    """Return a component: distributed values are only read, so those of arrays are some of arrays or sparse rows."""
    return value[0]


def first_of_any(value: PerReplica) -> None:
    """Nobody has to say what a component is."""
    assert_type(value[0], Any)


def right_values() -> None:
    """Distributed values know what their components are."""
    value = PerReplica(gradients())
    assert_type(value, PerReplica[Array])
    assert_type(value[0], Array)
    assert_type(value.values, tuple[Array, ...])
    assert_type([component for component in value], list[Array])  # noqa: C416 - what iterating gives
    assert_type(Mirrored(gradients()).on("cpu:1"), Array)
    assert_type(first_of_either(value), Array | IndexedSlices)
    first_of_any(value)


def right_ops() -> None:
    """Results of reductions have the type of their values."""
    ops = HierarchicalCopyAllReduce()
    value, sparse = PerReplica(gradients()), PerReplica([IndexedSlices(np.ones((1, 2)), np.array([0]), (3, 2))])
    assert_type(ops.reduce("sum", value, value), Mirrored[Array])
    assert_type(ops.reduce(ReduceOp.MEAN, PerReplica(models()), "cpu:0")[0], Layers)
    assert_type(ops.reduce("sum", sparse, "cpu:0"), Mirrored[IndexedSlices])
    assert_type(ops.gather(value, "cpu:0", axis=0), Mirrored[Array])
    assert_type(ops.broadcast(gradients()[0], ["cpu:0", "cpu:1"]), Mirrored[Array])
    assert_type(ops.batch_reduce("mean", [(value, value), (value, "cpu:0")]), list[Mirrored[Array]])
    assert_type(ops.batch_reduce("sum", ((each, each) for each in [value])), list[Mirrored[Array]])


def right_bare_values() -> None:
    """One array, number or ``IndexedSlices`` counts as one replica; of what, nobody said."""
    ops = HierarchicalCopyAllReduce()
    assert_type(ops.reduce("sum", gradients()[0], "cpu:0"), Mirrored[Any])
    assert_type(ops.reduce("sum", 2.0, "cpu:0")[0], Any)
    assert_type(ops.batch_reduce("sum", [(gradients()[0], "cpu:0")]), list[Mirrored[Any]])


def wrong_ops() -> None:
    """A misspelt op is found before anything runs."""
    ops = HierarchicalCopyAllReduce()
    value = PerReplica(gradients())
    treefold.all_reduce(gradients(), "men")  # error
    treefold.reduce(gradients(), op="summ")  # error
    ops.reduce("maximum", value, value)  # error
    ops.batch_reduce("total", [(value, value)])  # error


def wrong_order() -> None:
    """The device stands behind ``to``, and an ops object takes the op first."""
    treefold.reduce(gradients(), "cpu:0")  # error
    treefold.reduce(gradients(), "mean", "cpu:0")  # error
    HierarchicalCopyAllReduce().reduce(PerReplica(gradients()), "sum", "cpu:0")  # error


def wrong_values() -> None:
    """Things that are neither values nor results."""
    treefold.all_reduce(3.0)  # error
    treefold.all_reduce(gradients()[0], gradients()[1])  # error
    HierarchicalCopyAllReduce().reduce("sum", "abc", "cpu:0")  # error
    HierarchicalCopyAllReduce().reduce("sum", gradients(), "cpu:0")  # error
    treefold.all_reduce(gradients()).shape  # error # noqa: B018
    treefold.all_reduce(models())[0].kernel  # error # noqa: B018
    total: list[Layers] = treefold.all_reduce(gradients())  # error
    mirrored: Mirrored[Layers] = HierarchicalCopyAllReduce().reduce("sum", PerReplica(gradients()), "cpu:0")  # error
    treefold.all_reduce(total, weights="123", out=mirrored)  # error
