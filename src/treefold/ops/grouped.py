"""Ops of a group: the same calls, on the replicas of all ranks, with destinations on each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from treefold.backends import backend_of
from treefold.calls.arguments import read_destinations
from treefold.calls.entry import as_distributed
from treefold.devices import Device
from treefold.errors import ArgumentError, DeviceError, OutputError
from treefold.group import Group, connect
from treefold.reduce_op import ReduceOp
from treefold.values import DistributedValues, IndexedSlices, Mirrored, PerReplica, flatten, unflatten


class GroupedOps:
    """What an ops object does with a group: this process brings its replicas and gets results on its destinations."""

    def __init__(self, group: object, accumulate: str) -> None:
        """Take a group, or connect the ranks of a ProcessGroup or communicator, for as long as this object lives."""
        self.group = group if isinstance(group, Group) else connect(group)
        self._folds = self.group.folds(accumulate)

    def reduce(
        self, op: ReduceOp | str, pairs: Sequence[tuple[Any, Any]], out: Sequence[Any] | None, weights: Any
    ) -> list[Mirrored]:
        """Reduce many values of all ranks in one call, each to this rank's destinations.

        Raises:
            TreefoldError: one of its kinds, on all ranks.

        """
        with self.group.telling():
            values = [as_distributed(value, "per_replica_value") for value, _ in pairs]
            if len({len(value) for value in values}) > 1:
                raise ArgumentError.replica_counts([len(value) for value in values])
            ends = [self._destinations(asked) for _, asked in pairs]
            targets = None if out is None else [_components(one, len(end)) for one, end in zip(out, ends, strict=True)]
            batch = PerReplica([list(one) for one in zip(*(value.values for value in values), strict=True)])
        taken = None if targets is None or not all(targets) else [components[0] for components in targets]
        reduced = self._folds.all_reduce(batch, op, out=taken, weights=weights)
        given = targets or [()] * len(ends)
        return [
            Mirrored.made(_on_all(result, devices, into), devices, reduced.plan)
            for result, devices, into in zip(reduced.value, ends, given, strict=True)
        ]

    def _destinations(self, asked: object) -> tuple[str, ...]:
        """Return this rank's destinations: all of them, or, where they name ranks, its own.

        Raises:
            DeviceError: some name a rank and some do not, or a rank is not in the group.

        """
        names = [asked] if isinstance(asked, str) else asked
        if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
            return read_destinations(asked)
        devices = [Device.parse(name) for name in names]
        ranks = [device.rank for device in devices]
        if set(ranks) <= {None}:
            return read_destinations(asked)
        for name, rank in zip(names, ranks, strict=True):
            if rank is None or rank >= self.group.size:
                raise DeviceError.not_of_group(name, rank, self.group.size)
        return tuple(f"{device.type}:{device.index}" for device in devices if device.rank == self.group.rank)


def _components(out: Any, count: int) -> tuple[Any, ...]:
    values = out.values if isinstance(out, DistributedValues) else (out,)
    if len(values) != count:
        raise OutputError.form(out, f"a PerReplica or Mirrored with {count} components, one for each destination")
    return tuple(values)


def _on_all(result: Any, devices: Sequence[str], into: Sequence[Any]) -> tuple[Any, ...]:
    """Return a result on each device of this process; ``into``: arrays that take it, the first of which has it."""
    if not devices:
        return ()
    if not into:
        return (result, *(_copy(result, device) for device in devices[1:]))
    for target in into[1:]:
        for source, end in zip(flatten(result)[0], flatten(target)[0], strict=True):
            backend = backend_of(end)
            if backend is not None:
                backend.assign(end, source)
    return tuple(into)


def _copy(result: Any, device: str) -> Any:
    """Return a copy of an array, sparse rows or a pytree of them."""
    if isinstance(result, IndexedSlices):
        return IndexedSlices(_copy(result.values, device), _copy(result.indices, device), result.dense_shape)
    leaves, structure = flatten(result)
    if len(leaves) == 1 and leaves[0] is result:
        backend = backend_of(result)
        return result if backend is None else backend.copy_to(result, device)
    return unflatten(structure, [_copy(leaf, device) for leaf in leaves])
