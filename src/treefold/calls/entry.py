"""Validation of values: turns components into leaves that all replicas agree on, and results into components."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import optree

from treefold.backends import ArrayBackend, backend_of, refusal_of
from treefold.calls.arguments import FIRST_REPLICA, as_asked, read_destinations
from treefold.calls.reader import Brought, ReadArray, Reading, Slices, is_shape, leaves_of, structures_of
from treefold.devices import similar_device
from treefold.errors import ArgumentError, CallError, DeviceError, MismatchError
from treefold.execution import Operand, Results
from treefold.plan import Plan
from treefold.plan.ir import Goal
from treefold.values import DistributedValues, IndexedSlices, Mirrored, PerReplica, are_same, leaf_paths, unflatten


@dataclass(frozen=True, slots=True)
class Part:
    """One array of a leaf in all replicas, for the planner (dtype, lengths) and the executor (operand)."""

    path: str
    dtype: str
    goal: Goal
    lengths: tuple[int, ...]
    operand: Operand
    is_in_host_memory: bool


@dataclass(frozen=True, slots=True)
class LeafForm:
    """How many parts make a leaf's result: one for an array, two for sparse rows, none for None."""

    num_parts: int
    dense_shape: Any = None


@dataclass(frozen=True, slots=True)
class Entry:
    """One validated value with its destinations. ``columns``: each leaf as it was read, replica by replica."""

    structure: optree.PyTreeSpec
    forms: tuple[LeafForm, ...]
    parts: tuple[Part, ...]
    sources: tuple[str, ...]
    destinations: tuple[str, ...]
    reading: Reading | None = None
    columns: Sequence[Sequence[Brought]] = ()

    @property
    def num_replicas(self) -> int:
        """Number of contributions."""
        return len(self.sources)

    @property
    def matches(self) -> bool:
        """Whether the destinations are the devices of the values, in any order."""
        return set(self.sources) == set(self.destinations)


#: Makes the parts of one leaf from its path and its array in each replica.
LeafReader = Callable[[str, list[Brought]], tuple[LeafForm, list[Part]]]


def as_distributed(value: object, what: str) -> DistributedValues:
    """Return a value as distributed: itself, or one array or ``IndexedSlices`` as one replica on its device.

    Raises:
        ArgumentError: It is a bare list, tuple or dict, or nothing that a loaded framework knows.
        CallError: It is a class.

    """
    if isinstance(value, DistributedValues):
        return value
    if isinstance(value, type):
        raise CallError(f"{value.__name__} is the class; make an object of it first: {value.__name__}().")
    if isinstance(value, list | tuple | dict):
        raise ArgumentError.bare_structure(value, what)
    if isinstance(value, IndexedSlices) or backend_of(value) or refusal_of(value) or is_shape(value):
        return PerReplica([value])
    raise ArgumentError.not_a_value(value, what)


def read_entry(
    value: DistributedValues,
    reading: Reading,
    destinations: object,
    read_leaf: LeafReader,
    *,
    is_planned: bool = False,
) -> Entry:
    """Check that the replicas agree and the devices exist.

    ``is_planned``: only shapes matter, not contents.

    Raises:
        ArgumentError: The destinations are not in one of their forms.
        MismatchError: Structures differ; ``read_leaf`` raises the other mismatches.
        DeviceError: A source or destination does not exist for the arrays' framework.

    """
    ends = None if destinations is value or destinations is FIRST_REPLICA else read_destinations(destinations)
    structure, *others = structures_of(reading)
    for replica, other in enumerate(others, start=1):
        if not are_same(other, structure):
            raise MismatchError(
                f"Replica {replica} has {_difference(structure, other)}. Every replica must bring the same structure."
            )
    columns = leaves_of(reading, is_planned=is_planned)
    forms, parts = [], []
    for path, leaves in zip(leaf_paths(structure), columns, strict=True):
        form, made = read_leaf(path, leaves)
        forms.append(form)
        parts.extend(made)
    sources = read_devices(value, columns)
    if ends is None:
        ends = sources if destinations is value else sources[:1]
    for part in parts:
        check_devices(part.operand.backend, (*sources, *ends), destinations)
    return Entry(structure, tuple(forms), tuple(parts), sources, ends, reading, columns)


def read_devices(value: DistributedValues, columns: Sequence[Sequence[Brought]]) -> tuple[str, ...]:
    """Return the device of each component; ``columns`` holds, for each leaf, its array in every component.

    Raises:
        DeviceError: A component is on several devices, or not on the device that its value names.

    """
    rows = zip(*columns, strict=True) if columns else [()] * len(value)
    return tuple(value.device_of(index, [device_of(leaf) for leaf in row]) for index, row in enumerate(rows))


def device_of(leaf: Brought) -> str | None:
    """Return the device that a leaf is on, None for host memory."""
    return None if leaf is None else leaf.values.device if isinstance(leaf, Slices) else leaf.device


def check_devices(backend: ArrayBackend, devices: Sequence[str], asked: object = None) -> None:
    """Refuse devices that an array's framework does not have. ``asked``: some of them, in the caller's spelling.

    Raises:
        DeviceError: Its sentence names the first.

    """
    for device in dict.fromkeys(devices):
        if not backend.has_device(device):
            name, why, similar = as_asked(device, asked), backend.why_missing(device), similar_device(device)
            raise DeviceError.missing(name, backend.name, there=backend.describe_devices(), why=why, similar=similar)


def common_backend(path: str, arrays: Sequence[Any]) -> ArrayBackend:
    """Return the one backend that owns all arrays of a leaf.

    Raises:
        ArgumentError: One of them is not an array.
        MismatchError: They belong to several frameworks.

    """
    return agreed_backend(path, [ReadArray(array, backend_of(array)) for array in arrays])


def agreed_backend(path: str, leaves: Sequence[ReadArray]) -> ArrayBackend:
    """Return the one backend of the arrays of a leaf, as they were read.

    Raises:
        ArgumentError: One of them is not an array.
        MismatchError: They belong to several frameworks.

    """
    first = leaves[0].backend
    for replica, leaf in enumerate(leaves):
        if leaf.backend is None:
            raise ArgumentError.not_a_value(leaf.array, f"Replica {replica}{at(path)}")
        if first is not None and leaf.backend is not first:
            raise MismatchError.leaf(replica, at(path), f"a {leaf.backend.name} array", f"a {first.name} array")
    if first is None:
        raise AssertionError(leaves)
    return first


def check_refusals(path: str, leaves: Sequence[Brought], what: str = "Replica {}") -> None:
    """Refuse arrays, in sparse rows too, that their framework's backend cannot read as they are.

    Raises:
        ArgumentError: Its sentence names the first replica with such an array.

    """
    for replica, leaf in enumerate(leaves):
        for array in (leaf.values, leaf.indices) if isinstance(leaf, Slices) else (leaf,):
            if array is not None and array.refusal is not None:
                refusal = array.refusal
                raise ArgumentError.unsupported_array(what.format(replica), at(path), refusal.got, refusal.advice)


def at(path: str) -> str:
    """Return " at ['a']['b']" for a leaf's path, and "" for a bare array."""
    return f" at {path}" if path else ""


def _difference(first: optree.PyTreeSpec, other: optree.PyTreeSpec) -> str:
    """Describe, by the path of a leaf, how another structure differs from replica 0's."""
    paths, others = leaf_paths(first), leaf_paths(other)
    missing = next((path for path in paths if path not in others), None)
    extra = next((path for path in others if path not in paths), None)
    if missing is not None:
        return f"nothing at {missing or 'the top'} where replica 0 has a value"
    if extra is not None:
        return f"a value at {extra or 'the top'} where replica 0 has none"
    if _kind(other) == _kind(first):  # a list in another list's place, other names of what has no children …
        return f"a {_kind(other)} of another structure, or of other static data, than replica 0's"
    return f"a {_kind(other)} where replica 0 has a {_kind(first)}"


def _kind(structure: optree.PyTreeSpec) -> str:
    return structure.type.__name__ if structure.type is not None else "bare value"


def wrap(results: Results, entries: Sequence[Entry], plan: Plan) -> list[Mirrored]:
    """Return the results of each entry as ``Mirrored`` on its destinations."""
    wrapped, position = [], 0
    for entry in entries:
        own = results[position : position + len(entry.parts)]
        position += len(entry.parts)
        components = [component(entry, [arrays[index] for arrays in own]) for index in range(len(entry.destinations))]
        wrapped.append(Mirrored.made(tuple(components), entry.destinations, plan))
    return wrapped


def moved_axis(results: Results, entry: Entry, axis: int) -> Results:
    """Return gathered arrays with axis ``axis`` in its place; executors make it the first one."""
    moved: Results = []
    for part, arrays in zip(entry.parts, results, strict=True):
        backend, target = part.operand.backend, axis % len(part.operand.shape)
        if target == 0:
            moved.append(arrays)
        else:
            pairs = zip(arrays, entry.destinations, strict=True)
            moved.append(tuple(backend.copy_to(backend.moveaxis(array, 0, target), device) for array, device in pairs))
    return moved


def component(entry: Entry, arrays: Sequence[Any]) -> Any:
    """Return arrays, one for each part of an entry, in the structure of its values."""
    remaining = iter(arrays)
    leaves: list[Any] = []
    for form in entry.forms:
        if form.num_parts == 0:
            leaves.append(None)
        elif form.num_parts == 1:
            leaves.append(next(remaining))
        else:
            leaves.append(IndexedSlices(next(remaining), next(remaining), form.dense_shape))
    return unflatten(entry.structure, leaves)
