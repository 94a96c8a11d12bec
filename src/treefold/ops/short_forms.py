"""The short forms: lists in, lists out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from treefold.backends.tracing import as_written
from treefold.calls.arguments import FIRST_REPLICA, read_sequence
from treefold.ops.all_reduce_ops import HierarchicalCopyAllReduce
from treefold.ops.one_device import ReductionToOneDevice
from treefold.reduce_op import ReduceOpLike
from treefold.values import DistributedValues, PerReplica, T, Weights

# They hold nothing but plans they have made.
_ALL_REDUCE = HierarchicalCopyAllReduce(num_packs="auto")
_REDUCE = ReductionToOneDevice()


@as_written
def all_reduce(
    values: Sequence[T] | DistributedValues[T],
    op: ReduceOpLike = "sum",
    *,
    out: Sequence[Any] | DistributedValues[Any] | None = None,
    weights: Weights | None = None,
) -> list[T]:
    """Return the reduction of ``values``, one per replica, once for every replica.

    The results are of the type of the values; Python's own numbers become NumPy arrays without axes. ``out``: a list of
    arrays or pytrees that take the results, such as ``values`` itself. ``weights``: MEAN only.

    Raises:
        TreefoldError: one of its kinds; see ``CrossDeviceOps.reduce``.

    >>> [int(total) for total in all_reduce([1, 2, 4])]
    [7, 7, 7]
    """
    replicas = per_replica(values, "values")
    targets = None
    if out is not None:
        # The same object for the same list: that is how a call in place is recognised.
        targets = replicas if out is values else PerReplica(read_sequence(out, "out"))
    return list(_ALL_REDUCE.reduce(op, replicas, replicas, out=targets, weights=weights).values)


@as_written
def reduce(
    values: Sequence[T] | DistributedValues[T],
    op: ReduceOpLike = "sum",
    *,
    to: Any = None,
    weights: Weights | None = None,
) -> T:
    """Return the reduction of ``values``, one per replica, on one device.

    ``to``: that device, by its name or as an object such as ``torch.device``, or an array on it; None: the device of
    the first replica. The rest is as in ``all_reduce``.

    Raises:
        TreefoldError: one of its kinds; see ``CrossDeviceOps.reduce``.

    >>> float(reduce([1.0, 2.0], "mean", to="cpu:0"))
    1.5
    """
    destination = FIRST_REPLICA if to is None else to
    return _REDUCE.reduce(op, per_replica(values, "values"), destination, weights=weights)[0]


@as_written
def broadcast(value: T, destinations: Any) -> list[T]:
    """Return one copy of ``value`` for each destination.

    Raises:
        TreefoldError: one of its kinds; see ``CrossDeviceOps.broadcast``.

    >>> [int(copy) for copy in broadcast(7, ["cpu:0", "cpu:1"])]
    [7, 7]
    """
    return list(_REDUCE.broadcast(value, destinations).values)


def per_replica(values: Sequence[T] | DistributedValues[T], what: str) -> DistributedValues[T]:
    """Return the values of a short form as distributed; errors call them ``what``.

    Raises:
        ArgumentError: they are no list or tuple, or empty.

    """
    if type(values) is list and values:
        return PerReplica(values)
    return values if isinstance(values, DistributedValues) else PerReplica(read_sequence(values, what))
