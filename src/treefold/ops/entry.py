"""Validation of values: from what the caller handed over to leaves that all replicas agree on."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import optree

from treefold.backends import ArrayBackend, backend_of, loaded_backends
from treefold.devices import device_type
from treefold.errors import ArgumentError, CallError, DeviceError, MismatchError
from treefold.execution import Operand
from treefold.plan.ir import Goal
from treefold.values import DistributedValues, IndexedSlices, PerReplica, are_same, flatten, leaf_paths


@dataclass(frozen=True, slots=True)
class Part:
    """One array of a leaf in all replicas: what the planner needs (dtype, lengths) and what the executor needs."""

    path: str
    dtype: str
    goal: Goal
    lengths: tuple[int, ...]
    operand: Operand


@dataclass(frozen=True, slots=True)
class LeafForm:
    """How a leaf's result is put together from its parts: one for an array, two for sparse rows, none for None."""

    num_parts: int
    dense_shape: Any = None


@dataclass(frozen=True, slots=True)
class Entry:
    """One value with its destinations, validated."""

    structure: optree.PyTreeSpec
    forms: tuple[LeafForm, ...]
    parts: tuple[Part, ...]
    sources: tuple[str, ...]
    destinations: tuple[str, ...]

    @property
    def num_replicas(self) -> int:
        """Number of contributions."""
        return len(self.sources)

    @property
    def matches(self) -> bool:
        """Whether the destinations are the devices of the values, in any order."""
        return set(self.sources) == set(self.destinations)


_MOST_ELEMENTS = 2**63

#: Makes the parts of one leaf from its path and its contributions in replica order.
LeafReader = Callable[[str, list[Any]], tuple[LeafForm, list[Part]]]


def as_distributed(value: object, what: str) -> DistributedValues:
    """Return a value as distributed: itself, or one array or ``IndexedSlices`` as one replica on its device.

    Raises:
        ArgumentError: it is a bare list, tuple or dict, or nothing that a loaded framework knows.
        CallError: it is a class.

    """
    if isinstance(value, DistributedValues):
        return value
    if isinstance(value, type):
        raise CallError.class_for_object(value.__name__)
    if isinstance(value, list | tuple | dict):
        raise ArgumentError.bare_structure(value, what)
    if isinstance(value, IndexedSlices) or backend_of(value) is not None or is_shape(value):
        return PerReplica([value])
    raise ArgumentError.not_a_value(value, what)


def is_shape(value: object) -> bool:
    """Tell whether a value has a shape and a dtype, which is all that planning needs."""
    return hasattr(value, "shape") and hasattr(value, "dtype") and not isinstance(value, type)


def read_entry(value: DistributedValues, destinations: tuple[str, ...], read_leaf: LeafReader) -> Entry:
    """Take the components apart and check that the replicas agree and the devices exist.

    Raises:
        MismatchError: structures differ; ``read_leaf`` raises the rest.
        DeviceError: a source or destination does not exist for the arrays' framework.

    """
    flat = [flatten(component) for component in value.values]
    _, structure = flat[0]
    for replica, (_, other) in enumerate(flat[1:], start=1):
        if not are_same(other, structure):
            raise MismatchError.structure(replica, _difference(structure, other))
    forms, parts = [], []
    paths = leaf_paths(structure)
    for index, path in enumerate(paths):
        form, made = read_leaf(path, [component_leaves[index] for component_leaves, _ in flat])
        forms.append(form)
        parts.extend(made)
    sources = tuple(value.device_of(replica, leaves) for replica, (leaves, _) in enumerate(flat))
    for part in parts:
        check_devices(part.operand.backend, (*sources, *destinations))
    return Entry(structure, tuple(forms), tuple(parts), sources, destinations)


def check_devices(backend: ArrayBackend, devices: Sequence[str]) -> None:
    """Refuse devices that an array's framework does not have.

    Raises:
        DeviceError: naming the first.

    """
    for device in dict.fromkeys(devices):
        if not backend.has_device(device):
            raise DeviceError.missing(device, backend.name, [b.name for b in loaded_backends()])


def common_backend(path: str, arrays: Sequence[Any]) -> ArrayBackend:
    """Return the one backend that owns all arrays of a leaf; bare shapes are taken as NumPy's.

    Raises:
        ArgumentError: one of them is no array.
        MismatchError: they are of several frameworks.

    """
    backends: list[ArrayBackend] = []
    for replica, array in enumerate(arrays):
        backend = backend_of(array)
        if backend is None and is_shape(array) and not hasattr(array, "__array__"):
            backend = loaded_backends()[0]
        if backend is None:
            raise ArgumentError.not_a_value(array, f"Replica {replica}{at(path)}")
        if backends and backend is not backends[0]:
            raise MismatchError.leaf(replica, at(path), f"a {backend.name} array", f"a {backends[0].name} array")
        backends.append(backend)
    return backends[0]


def check_taken(path: str, leaves: Sequence[Any], what: str = "Replica {}") -> None:
    """Refuse arrays that their framework's backend cannot read as they are, sparse rows' among them.

    Raises:
        ArgumentError: naming the first replica that brings one.

    """
    for replica, leaf in enumerate(leaves):
        for array in (leaf.values, leaf.indices) if isinstance(leaf, IndexedSlices) else (leaf,):
            backend = backend_of(array)
            refusal = None if backend is None else backend.refusal(array)
            if refusal is not None:
                raise ArgumentError.not_taken(what.format(replica), at(path), refusal.got, refusal.advice)


def shape_dtype(backend: ArrayBackend, array: Any) -> tuple[tuple[int, ...], str]:
    """Return shape and dtype name of an array, or of something that only has a shape."""
    if backend.owns(array):
        return backend.shape_dtype(array)
    return read_shape(array.shape), _dtype_name(array.dtype)


def read_shape(shape: object) -> tuple[int, ...]:
    """Return a shape that a caller has given, of whatever whole numbers it is made.

    Raises:
        ArgumentError: it is no sequence of whole numbers ≥ 0, or of more elements than any memory has.

    """
    try:
        lengths = tuple(operator.index(length) for length in shape)  # type: ignore[attr-defined] # that is what is tried
    except TypeError:
        raise ArgumentError.shape(shape) from None
    if any(length < 0 for length in lengths) or math.prod(lengths) >= _MOST_ELEMENTS:
        raise ArgumentError.shape(shape)
    return lengths


def in_host_memory(operand: Operand, destinations: Sequence[str]) -> bool:
    """Tell whether a leaf's contributions and results all lie in host memory."""
    backend = operand.backend
    # What has no contents, as planning allows, stands for host memory where it is on no device.
    is_host = (
        not backend.owns(a) or backend.host_view(a) is not None or backend.device_of(a) is None for a in operand.arrays
    )
    return all(device_type(device) == "cpu" for device in destinations) and all(is_host)


def at(path: str) -> str:
    """Return " at ['a']['b']" for a leaf's path, nothing for a bare array."""
    return f" at {path}" if path else ""


def _dtype_name(dtype: object) -> str:
    try:
        return np.dtype(dtype).name  # type: ignore[call-overload, no-any-return]
    except (TypeError, ValueError):
        return str(dtype).rpartition(".")[2]  # torch.float32


def _difference(first: optree.PyTreeSpec, other: optree.PyTreeSpec) -> str:
    """Say, by the path of a leaf, in what another structure differs from replica 0's."""
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
