"""The short forms: lists in, lists out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from treefold.calls.arguments import read_sequence
from treefold.ops.all_reduce_ops import HierarchicalCopyAllReduce
from treefold.ops.one_device import ReductionToOneDevice
from treefold.reduce_op import ReduceOp
from treefold.values import DistributedValues, PerReplica

# They hold nothing but plans they have made.
_ALL_REDUCE = HierarchicalCopyAllReduce(num_packs="auto")
_REDUCE = ReductionToOneDevice()


def all_reduce(
    values: Sequence[Any],
    op: ReduceOp | str = "sum",
    *,
    out: Sequence[Any] | None = None,
    weights: Sequence[float] | None = None,
) -> list[Any]:
    """Return the reduction of ``values``, one per replica, once for every replica.

    ``out``: a list of arrays or pytrees that take the results, such as ``values`` itself. ``weights``: MEAN only.

    Raises:
        TreefoldError: one of its kinds; see ``CrossDeviceOps.reduce``.

    >>> [int(total) for total in all_reduce([1, 2, 4])]
    [7, 7, 7]
    """
    replicas = _per_replica(values)
    targets = None
    if out is not None:
        # The same object for the same list: that is how a call in place is recognised.
        targets = replicas if out is values else PerReplica(read_sequence(out, "out"))
    return list(_ALL_REDUCE.reduce(op, replicas, replicas, out=targets, weights=weights).values)


def reduce(
    values: Sequence[Any],
    destination: Any,
    op: ReduceOp | str = "sum",
    *,
    weights: Sequence[float] | None = None,
) -> Any:
    """Return the reduction of ``values``, one per replica, on ``destination``.

    Raises:
        TreefoldError: one of its kinds; see ``CrossDeviceOps.reduce``.

    >>> float(reduce([1.0, 2.0], "cpu:0", "mean"))
    1.5
    """
    return _REDUCE.reduce(op, _per_replica(values), destination, weights=weights)[0]


def broadcast(value: Any, destinations: Any) -> list[Any]:
    """Return one copy of ``value`` for each destination.

    Raises:
        TreefoldError: one of its kinds; see ``CrossDeviceOps.broadcast``.

    >>> [int(copy) for copy in broadcast(7, ["cpu:0", "cpu:1"])]
    [7, 7]
    """
    return list(_REDUCE.broadcast(value, destinations).values)


def _per_replica(values: Sequence[Any]) -> DistributedValues:
    if type(values) is list and values:
        return PerReplica(values)
    return values if isinstance(values, DistributedValues) else PerReplica(read_sequence(values, "values"))
