"""The short forms: lists in, lists out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

from treefold.backends import backend_of
from treefold.backends.tracing import as_written
from treefold.calls.arguments import FIRST_REPLICA, read_sequence
from treefold.errors import CallError
from treefold.ops.cross_device_ops import HierarchicalCopyAllReduce, ReductionToOneDevice
from treefold.reduce_op import ReduceOp, ReduceOpLike
from treefold.values import DistributedValues, Mirrored, PerReplica, T, Weights

# Shared by all callers: between calls they keep nothing but plans.
_ALL_REDUCE = HierarchicalCopyAllReduce(num_packs="auto")
_REDUCE = ReductionToOneDevice()


@overload
def all_reduce(
    values: DistributedValues[T],
    op: ReduceOpLike = "sum",
    *,
    out: Sequence[Any] | DistributedValues[Any] | None = None,
    weights: Weights | None = None,
) -> Mirrored[T]: ...
@overload
def all_reduce(
    values: Sequence[T],
    op: ReduceOpLike = "sum",
    *,
    out: Sequence[Any] | DistributedValues[Any] | None = None,
    weights: Weights | None = None,
) -> list[T]: ...
@as_written
def all_reduce(
    values: Any,
    op: ReduceOpLike = "sum",
    *,
    out: Sequence[Any] | DistributedValues[Any] | None = None,
    weights: Weights | None = None,
) -> Any:
    """Return the reduction of ``values``, one per replica, once for every replica.

    Results have the type of the values; Python's own numbers become 0-d NumPy arrays.

    Args:
        values: Arrays or pytrees of arrays that agree in structure, shapes and dtypes, one per replica.
        op: A ``ReduceOp`` or its name.
        out: A list of arrays or pytrees that take the results, such as ``values`` itself. None: new arrays.
        weights: One number per replica, for MEAN only. None: all replicas weigh the same.

    Returns:
        A list for a list. A ``Mirrored`` for a ``PerReplica``; its ``plan`` is the plan that ran.

    Raises:
        TreefoldError: A subclass from ``treefold.errors``; see ``CrossDeviceOps.reduce``.

    >>> [int(total) for total in all_reduce([1, 2, 4])]
    [7, 7, 7]
    """
    check_op(op, "all_reduce")
    replicas = per_replica(values, "values")
    targets = None
    if out is not None:
        # The same object for the same list: the fast path recognises a call in place by it.
        targets = replicas if out is values else PerReplica(read_sequence(out, "out"))
    result = _ALL_REDUCE.reduce(op, replicas, replicas, out=targets, weights=weights)
    return result if replicas is values else list(result.values)


@as_written
def reduce(
    values: Sequence[T] | DistributedValues[T],
    op: ReduceOpLike = "sum",
    *,
    to: Any = None,
    weights: Weights | None = None,
) -> T:
    """Return the reduction of ``values``, one per replica, on one device.

    Args:
        values: Arrays or pytrees of arrays that agree in structure, shapes and dtypes, one per replica.
        op: A ``ReduceOp`` or its name.
        to: The device, as its name, an object such as ``torch.device``, or an array on it. None: the device of the
            first replica.
        weights: One number per replica, for MEAN only. None: all replicas weigh the same.

    Returns:
        One value of the type, structure and shapes of a replica's.

    Raises:
        TreefoldError: A subclass from ``treefold.errors``; see ``CrossDeviceOps.reduce``.

    >>> float(reduce([1.0, 2.0], "mean", to="cpu:0"))
    1.5
    """
    check_op(op, "reduce")
    destination = FIRST_REPLICA if to is None else to
    return _REDUCE.reduce(op, per_replica(values, "values"), destination, weights=weights)[0]


@as_written
def broadcast(value: T, destinations: Any) -> list[T]:
    """Return one copy of ``value`` for each destination.

    Args:
        value: An array, ``IndexedSlices`` or a pytree of them.
        destinations: The devices, as ``CrossDeviceOps.reduce`` takes them.

    Returns:
        The copies, in the order of the destinations.

    Raises:
        TreefoldError: A subclass from ``treefold.errors``; see ``CrossDeviceOps.broadcast``.

    >>> [int(copy) for copy in broadcast(7, ["cpu:0", "cpu:1"])]
    [7, 7]
    """
    return list(_REDUCE.broadcast(value, destinations).values)


def check_op(op: object, caller: str) -> None:
    """Refuse a value in the place of the op, as in ``all_reduce(a, b)``."""
    if type(op) is str or isinstance(op, str | ReduceOp):  # the usual one first: every call asks this
        return
    if isinstance(op, list | tuple | dict | DistributedValues) or backend_of(op) is not None:
        raise CallError(
            f"{caller} got a value where its reduce op is meant. It takes the values of all replicas in one list: "
            f"write {caller}([a, b]), or {caller}([a, a]) for one value twice."
        )


def per_replica(values: Sequence[T] | DistributedValues[T], what: str) -> DistributedValues[T]:
    """Return the values of a short form as distributed values; ``what`` is their name in errors.

    Raises:
        ArgumentError: They are not a list or tuple, or empty.

    """
    if type(values) is list and values:
        return PerReplica(values)
    return values if isinstance(values, DistributedValues) else PerReplica(read_sequence(values, what))
