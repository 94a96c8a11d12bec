"""Ops of a group: the same calls, on the replicas of all ranks, with destinations on each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from treefold.backends import backend_of
from treefold.calls.arguments import read_destinations
from treefold.calls.entry import as_distributed, check_devices
from treefold.devices import Device
from treefold.errors import ArgumentError, DeviceError, OutputError
from treefold.errors.words import short
from treefold.group import Group, connect
from treefold.group.collectives import Collectives
from treefold.group.reductions import Reductions
from treefold.group.transport.link import one_call
from treefold.plan import Plan
from treefold.reduce_op import ReduceOp
from treefold.values import DistributedValues, IndexedSlices, Mirrored, PerReplica, flatten, unflatten


class GroupedOps:
    """The calls of an ops object to its group: this rank's replicas go in, results come out on its destinations."""

    def __init__(self, group: object, accumulate: str) -> None:
        """Use a group, or connect the ranks of a ProcessGroup or communicator for the lifetime of this object."""
        self.group = group if isinstance(group, Group) else connect(group)
        self._link = self.group.link
        self._reductions, self._collectives = Reductions(self._link, accumulate), Collectives(self._link)

    @one_call
    def reduce(
        self, op: ReduceOp | str, pairs: Sequence[tuple[Any, Any]], out: Sequence[Any] | None, weights: Any
    ) -> list[Mirrored]:
        """Reduce many values of all ranks in one call, each to this rank's destinations.

        Raises:
            TreefoldError: A subclass from ``treefold.errors``, on all ranks.

        """
        values = [as_distributed(value, "per_replica_value") for value, _ in pairs]
        batch = _as_one(values)
        ends = self._ends([asked for _, asked in pairs], values)
        targets = [()] * len(pairs) if out is None else _targets(out, ends.own)
        # The group writes into out arrays if this rank is a destination of every value; else results are copied there.
        is_taken = all(targets)
        taken = [components[0] for components in targets] if is_taken else None
        reduced = self._reductions.all_reduce(batch, op, out=taken, weights=weights, destinations=ends.words)
        return [
            Mirrored.made(_on_all(result, devices, into, is_taken=is_taken), devices, reduced.plan)
            for result, devices, into in zip(reduced.value, ends.own, targets, strict=True)
        ]

    @one_call
    def gather(self, value: Any, asked: object, axis: int) -> Mirrored:
        """Concatenate the arrays of all ranks' replicas, in order, on this rank's destinations.

        Raises:
            TreefoldError: A subclass from ``treefold.errors``, on all ranks.

        """
        given = as_distributed(value, "per_replica_value")
        ends = self._ends([asked], [given])
        result = self._collectives.gather(given, axis, None, ends.words)
        return Mirrored.made(_on_all(result, ends.own[0], (), is_taken=False), ends.own[0], None)

    def plan(self, values: Sequence[Any]) -> Plan:
        """Return the plan of ``reduce`` if every rank brings as many replicas as this one; no other rank takes part.

        Raises:
            TreefoldError: A subclass from ``treefold.errors``.

        """
        return self._reductions.plan(_as_one([as_distributed(value, "per_replica_value") for value in values]), "sum")

    def _ends(self, asked: Sequence[object], values: Sequence[DistributedValues]) -> _Ends:
        """Return this rank's destinations of each value: all of them, or, where they name ranks, those of this rank.

        Raises:
            DeviceError: Some name a rank and some do not, a rank is not in the group, or a device does not exist.

        """
        own, words = [], []
        for destinations, value in zip(asked, values, strict=True):
            devices, said = self._destinations(value if destinations is value else destinations)
            for leaf in flatten(value.values[0])[0]:
                backend = backend_of(leaf.values if isinstance(leaf, IndexedSlices) else leaf)
                if backend is not None:
                    check_devices(backend, devices, None if said else destinations)
            own.append(devices)
            words.append(said)
        return _Ends(own, "; ".join(words) if any(words) else "")

    def _destinations(self, asked: object) -> tuple[tuple[str, ...], str]:
        """Return one value's destinations on this rank, and all of them in words if they name ranks."""
        names = [asked] if isinstance(asked, str) else asked
        if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
            return read_destinations(asked), ""
        devices = [Device.parse(name) for name in names]
        if {device.rank for device in devices} <= {None}:
            return read_destinations(asked), ""
        for name, device in zip(names, devices, strict=True):
            if device.rank is None or device.rank >= self.group.size:
                problem = "names no rank" if device.rank is None else f"is a device of rank {device.rank}"
                raise DeviceError(
                    f"{short(name)} {problem}, in a group of ranks 0 to {self.group.size - 1}. In one call, "
                    "destinations all name ranks of the group, or none does, which means each rank's own."
                )
        own = [f"{device.type}:{device.index}" for device in devices if device.rank == self.group.rank]
        return tuple(own), ", ".join(f"{device.rank}/{device.type}:{device.index}" for device in devices)


class _Ends(NamedTuple):
    """Destinations on this rank, value by value; and, where they name ranks, the destinations on all ranks in words."""

    own: list[tuple[str, ...]]
    words: str


def _as_one(values: Sequence[DistributedValues]) -> PerReplica[list[Any]]:
    """Return the values of a batch as one value: each of its replicas is the list of that replica's values.

    Raises:
        ArgumentError: The values have different numbers of replicas.

    """
    counts = [len(value) for value in values]
    if len(set(counts)) > 1:
        raise ArgumentError(
            f"The values of this batch have {', '.join(map(str, counts))} replicas on this rank. All values that a "
            "group reduces in one batch have as many on a rank; reduce the others in another call."
        )
    return PerReplica([list(one) for one in zip(*(value.values for value in values), strict=True)])


def _targets(out: object, ends: Sequence[Sequence[str]]) -> list[tuple[Any, ...]]:
    """Return the components of ``out`` that take each result.

    Raises:
        OutputError: Their number is not that of the destinations, or they differ from the first of them.

    """
    if not isinstance(out, list | tuple):
        words = f"a list with one entry per pair, {len(ends)} here"
        raise OutputError.form(out, words)
    if len(out) != len(ends):
        raise OutputError.entries(len(out), len(ends))
    targets = [_components(one, len(end)) for one, end in zip(out, ends, strict=True)]
    for components in targets:
        for index, component in enumerate(components[1:], start=1):
            _check_like(components[0], component, index)
    return targets


def _check_like(first: Any, other: Any, index: int) -> None:
    """Refuse a further component that cannot take a copy of the first one."""
    (wanted, structure), (leaves, own) = flatten(first), flatten(other)
    if own != structure:
        raise OutputError.structure(index, str(own), str(structure))
    for one, leaf in zip(wanted, leaves, strict=True):
        backend, like = backend_of(leaf), backend_of(one)
        if like is None or (one is None and leaf is None):
            continue  # the call itself refuses the first one
        shape, dtype = like.shape_dtype(one)
        words = f"a writable {like.name} array of {dtype} {shape}"
        owner = f"Component {index} of out"
        if backend is not like or like.shape_dtype(leaf) != (shape, dtype) or not like.is_writable(leaf):
            raise OutputError.leaf(owner, "", f"a {type(leaf).__name__}", words)
        refusal = like.write_refusal(leaf)
        if refusal is not None:
            raise OutputError.refused(owner, "", refusal.got, refusal.advice)


def _components(out: Any, count: int) -> tuple[Any, ...]:
    values = out.values if isinstance(out, DistributedValues) else () if out is None else (out,)
    if len(values) != count:
        raise OutputError.form(out, f"a PerReplica or Mirrored with {count} components, one for each destination")
    return tuple(values)


def _on_all(result: Any, devices: Sequence[str], into: Sequence[Any], *, is_taken: bool) -> tuple[Any, ...]:
    """Return a result on each device of this process.

    Args:
        result: The group's result.
        devices: This rank's destinations.
        into: The out arrays of the destinations; empty: copy to new arrays.
        is_taken: Whether the group has written the result into the first of ``into``.

    """
    if not devices:
        return ()
    if not into:
        return (result, *(_copy(result, device) for device in devices[1:]))
    for target in into[1:] if is_taken else into:
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
