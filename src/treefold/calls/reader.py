"""The one reader of calls: it reads each leaf of each value once, for the fast path and the slow path alike.

Arrays of one leaf that agree, are row-major and lie on one device are read at once into a ``Row``. The row's key
recognises later calls of such arrays. Validation asks for ``ReadArray`` records, which rows yield, too.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import optree

from treefold.backends import ArrayBackend, HostArray, Refusal, Row, backend_of, loaded_backends, read_row, refusal_of
from treefold.calls.arguments import FIRST_REPLICA, NO_OPTIONS
from treefold.errors import ArgumentError
from treefold.options import CommunicationOptions
from treefold.reduce_op import ReduceOp
from treefold.values import DistributedValues, IndexedSlices, StructureKey, flatten

_MOST_ELEMENTS = 2**63
#: In a key, stands for the value itself, as destinations or as ``out``.
_ITSELF = True
_NAMES = frozenset({str})
_LEAF = flatten(None)[1]


@dataclass(frozen=True, slots=True)
class ReadArray:
    """One array in one replica.

    Args:
        array: The object that the caller brought.
        backend: The array's backend; None if the object is not an array.
        refusal: Why the array cannot be reduced, or None; if it cannot, the fields below are empty.
        shape: Its shape.
        dtype: Its dtype's canonical name.
        device: Its device; None for host memory.
        view: NumPy's view of it; None if it is not in host memory or has no contents.

    """

    array: Any
    backend: ArrayBackend | None = None
    refusal: Refusal | None = None
    shape: tuple[int, ...] = ()
    dtype: str = ""
    device: str | None = None
    view: HostArray | None = None

    @property
    def is_in_host_memory(self) -> bool:
        """Whether its memory is the host's. A shape without contents, from planning, counts if it names no device."""
        return self.view is not None or self.device is None


@dataclass(frozen=True, slots=True)
class Slices:
    """``IndexedSlices`` in one replica."""

    slices: IndexedSlices
    values: ReadArray
    indices: ReadArray


#: One leaf of one replica.
Brought = ReadArray | Slices | None


@dataclass(eq=False, slots=True)
class ReadTree:
    """Components that are not the arrays of one row.

    Args:
        key: Recognises a call of such components; None if some leaf has no row.
        rows: The row of each leaf, None where its arrays do not make one.
        structures: The structure of each component.
        columns: For each leaf, its array in every component; empty if the structures differ.

    """

    key: Hashable | None
    rows: Sequence[Row | None]
    structures: Sequence[optree.PyTreeSpec]
    columns: Sequence[tuple[Any, ...]]


#: The components of a value, as they were read: arrays that make a row, or anything else.
Reading = Row | ReadTree


class ReadPair(NamedTuple):
    """A value and its out array, as they were read.

    Args:
        key: Recognises both and their destinations; None if it cannot.
        value: The components; None if the value needs the slow path.
        target: The components of ``out``; None if it needs the slow path, or if there is none.

    """

    key: Hashable | None
    value: Reading | None
    target: Reading | None


def read_pair(value: object, destinations: object, out: object) -> ReadPair:
    """Read the arrays of a value, and of ``out`` unless it is None. Nothing is refused here."""
    if not isinstance(value, DistributedValues):
        return ReadPair(None, None, read_components(out.values) if isinstance(out, DistributedValues) else None)
    reading = read_components(value.values)
    target: Reading | None = None
    end: Hashable = None
    if out is value:
        target, end = reading, _ITSELF
    elif isinstance(out, DistributedValues):
        target = read_components(out.values)
        end = target.key
    where = _ITSELF if destinations is value else _destinations_key(destinations)
    if reading.key is None or where is None or (end is None and out is not None):
        return ReadPair(None, reading, target)
    # A tuple is made in a fifth of the time that a named one takes.
    return tuple.__new__(ReadPair, ((reading.key, value.named_devices, where, end), reading, target))


def call_key(op: object, options: CommunicationOptions, pairs: Sequence[ReadPair]) -> Hashable | None:
    """Return the key that recognises a call, or None if it has none."""
    if type(op) is not str and type(op) is not ReduceOp:
        return None
    keys = [pair.key for pair in pairs]
    # None stands for the usual options: hashing them would hash an enumeration, in Python.
    return None if None in keys else (op, None if options is NO_OPTIONS else options, *keys)


def read_components(components: tuple[Any, ...]) -> Reading:
    """Read the components of a value.

    Raises:
        ArgumentError: A component is nested too deeply.

    """
    row = read_row(components)
    if row is not None:
        return row
    flat = [flatten(component) for component in components]
    structures = [structure for _, structure in flat]
    key = StructureKey(structures[0])
    if any(StructureKey(other) != key for other in structures[1:]):
        return ReadTree(None, (), structures, ())
    columns = list(zip(*(leaves for leaves, _ in flat), strict=True))
    rows = [read_row(column) for column in columns]
    keys = [row.key for row in rows if row is not None]
    return ReadTree((key, *keys) if 0 < len(keys) == len(rows) else None, rows, structures, columns)


def structures_of(reading: Reading) -> Sequence[optree.PyTreeSpec]:
    """Return the structure of each component; in a row, each is a bare leaf."""
    return reading.structures if isinstance(reading, ReadTree) else [_LEAF] * len(reading.arrays)


def rows_of(reading: Reading) -> list[Row]:
    """Return the rows of components that have a key."""
    return [row for row in reading.rows if row is not None] if isinstance(reading, ReadTree) else [reading]


def leaves_of(reading: Reading, *, is_planned: bool = False) -> list[list[Brought]]:
    """Return, for each leaf of the structure, its array in each replica.

    ``is_planned``: only shapes matter, not contents.
    """
    if not isinstance(reading, ReadTree):
        return [_leaves_of_row(reading, is_planned=is_planned)]
    return [
        [read_leaf(array, is_planned=is_planned) for array in column]
        if row is None
        else _leaves_of_row(row, is_planned=is_planned)
        for row, column in zip(reading.rows, reading.columns, strict=True)
    ]


def read_leaf(array: Any, *, is_planned: bool = False) -> Brought:
    """Read a leaf of one replica: an array, sparse rows or None; with ``is_planned``, also a bare shape.

    Raises:
        ArgumentError: A bare shape is not a shape.

    """
    if array is None:
        return None
    if isinstance(array, IndexedSlices):
        return Slices(array, *(_read_array(part, is_planned=is_planned) for part in (array.values, array.indices)))
    return _read_array(array, is_planned=is_planned)


def _read_array(array: Any, *, is_planned: bool) -> ReadArray:
    backend = backend_of(array)
    if backend is not None:
        return _leaf(array, backend, is_planned=is_planned)
    refusal = refusal_of(array)
    if refusal is not None:
        return ReadArray(array, None, refusal)
    if is_planned and is_shape(array) and not hasattr(array, "__array__"):
        return ReadArray(array, loaded_backends()[0], None, read_shape(array.shape), _dtype_name(array.dtype))
    return ReadArray(array)


def _leaf(array: Any, backend: ArrayBackend, view: HostArray | None = None, *, is_planned: bool) -> ReadArray:
    refusal = None if is_planned else backend.refusal(array)
    if refusal is not None:
        return ReadArray(array, backend, refusal)
    shape, dtype = backend.shape_dtype(array)
    device = backend.device_of(array)
    return ReadArray(array, backend, None, shape, dtype, device, backend.host_view(array) if view is None else view)


def _leaves_of_row(row: Row, *, is_planned: bool) -> list[Brought]:
    views = row.views or (None,) * len(row.arrays)
    pairs = zip(row.arrays, views, strict=True)
    return [_leaf(array, row.backend, view, is_planned=is_planned) for array, view in pairs]


def _destinations_key(destinations: object) -> Hashable | None:
    """Return the key of destinations, or None for those that have to be read."""
    if type(destinations) is str:
        return destinations
    if (type(destinations) is tuple or type(destinations) is list) and _NAMES.issuperset(map(type, destinations)):
        return tuple(destinations)
    return FIRST_REPLICA if destinations is FIRST_REPLICA else None


def is_shape(value: object) -> bool:
    """Return whether a value has a shape and a dtype; planning needs nothing else."""
    return hasattr(value, "shape") and hasattr(value, "dtype") and not isinstance(value, type)


def read_shape(shape: object) -> tuple[int, ...]:
    """Return a shape that a caller has given as a tuple of Python's integers.

    Raises:
        ArgumentError: It is not a sequence of whole numbers ≥ 0, or has more elements than any memory.

    """
    try:
        lengths = tuple(operator.index(length) for length in shape)  # type: ignore[attr-defined] # that is what is tried
    except TypeError:
        raise ArgumentError.shape(shape) from None
    if any(length < 0 for length in lengths) or math.prod(lengths) >= _MOST_ELEMENTS:
        raise ArgumentError.shape(shape)
    return lengths


def _dtype_name(dtype: object) -> str:
    try:
        return np.dtype(dtype).name  # type: ignore[call-overload, no-any-return]
    except (TypeError, ValueError):
        return str(getattr(dtype, "name", dtype)).rpartition(".")[2]  # tf.float32, torch.float32
