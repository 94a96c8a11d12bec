"""Contributions of one rank to a call: its arrays, their description for the others, and the arrays for results.

Arrays of ``out`` are checked before anything is sent to the others, and written once all ranks have agreed.
"""

from __future__ import annotations

import decimal
import hashlib
import numbers
import re
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import optree

from treefold.backends import ArrayBackend, HostArray, Row
from treefold.backends.interface import read_arrays
from treefold.calls.arguments import read_fractions
from treefold.calls.entry import Entry, LeafForm, Part, at, read_entry
from treefold.calls.leaves import read_folded_leaf
from treefold.calls.output import read_out
from treefold.calls.reader import ReadArray, Reading, ReadTree, leaves_of, read_components, read_shape
from treefold.errors import ArgumentError, DeviceError, DtypeError
from treefold.execution import Operand
from treefold.fold import Fold
from treefold.group.protocol import MOST_DESCRIBED
from treefold.reduce_op import ReduceOp, ReduceOpLike
from treefold.values import DistributedValues, PerReplica

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
#: Text in quotes, a bracket or a comma, or what is between these.
_PIECE = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|[][(){},]|[^][(){},'"]+|.""")


def address_of(array: HostArray) -> int:
    """Return where an array's memory begins."""
    address: int = array.__array_interface__["data"][0]
    return address


def plain_rows(entry: Entry) -> list[Row]:
    """Return each leaf's contributions as a row, of row-major copies where they are something else."""
    if isinstance(entry.reading, Row):
        return [entry.reading]
    given: Sequence[Row | None] = entry.reading.rows if isinstance(entry.reading, ReadTree) else ()
    if len(given) != len(entry.parts):  # leaves that are None, or sparse rows
        given = [None] * len(entry.parts)
    return [row_of(*host_arrays(part)) if row is None else row for row, part in zip(given, entry.parts, strict=True)]


def row_of(*arrays: HostArray) -> Row:
    """Return arrays in native memory, row-major, as a row."""
    row = read_arrays(None, arrays, arrays)
    if row is None:
        raise AssertionError(arrays)
    return row


def host_arrays(part: Part) -> list[HostArray]:
    """Return the arrays of a leaf in this process's memory, row-major and in native byte order.

    Raises:
        DeviceError: they are elsewhere.

    """
    if not part.is_in_host_memory:
        raise DeviceError.not_on_host(part.path)
    operand = part.operand
    views = operand.views or (None,) * len(operand.arrays)
    found = []
    for array, view in zip(operand.arrays, views, strict=True):
        host = operand.backend.host_view(array) if view is None else view
        found.append(np.require(host, np.dtype(part.dtype).newbyteorder("="), ["C", "A"]))
    return found


def check_movable(entry: Entry) -> None:
    """Refuse leaves that mean nothing in another process, or that the others could not be told of.

    Raises:
        DtypeError: elements are Python objects, text or records.

    """
    for part in entry.parts:
        try:
            dtype = np.dtype(part.dtype)
        except TypeError:  # text and records are not known by their names
            raise DtypeError(
                f"{part.dtype}{at(part.path)} cannot move between processes. Take numbers, bools or times."
            ) from None
        if dtype.hasobject:
            raise DtypeError.of_objects(part.dtype)


def own_weights(weights: Any, replicas: int, op: ReduceOp) -> tuple[Fraction, ...]:
    """Return this rank's weights: one number, or one for each of its replicas.

    Raises:
        ArgumentError: they are something else.

    """
    if isinstance(weights, numbers.Real | decimal.Decimal) and replicas == 1:
        weights = [weights]
    # The weights of one rank may all be 0; those of all ranks are checked when they have met.
    read = read_fractions(weights, op) or ()
    if len(read) != replicas:
        raise ArgumentError.weight_count(len(read), replicas)
    return read


def read_value(
    value: Any, reading: Reading, fold: Fold, weights: Any, device: str, *, is_planned: bool = False
) -> tuple[tuple[Fraction, ...] | None, Entry]:
    """Return this rank's weights, and its value validated by itself, as in one process.

    Raises:
        TreefoldError: replicas do not agree, or the weights are none for them.

    """
    local = value if isinstance(value, DistributedValues) else PerReplica([value])
    own = None if weights is None else own_weights(weights, len(local), fold.op)
    # Those of the other ranks are not known yet; that there are weights is all that reading asks for.
    weighted = replace(fold, weights=None if own is None else (1,) * len(own))
    return own, read_entry(
        local, reading, device, lambda path, leaves: read_folded_leaf(path, leaves, weighted), is_planned=is_planned
    )


def without_arrays(entry: Entry) -> Entry:
    """Return an entry to keep for later calls, which must not hold the arrays of this one."""
    bare = [replace(one, operand=Operand(one.operand.backend, (), one.operand.shape)) for one in entry.parts]
    return replace(entry, parts=tuple(bare), reading=None, columns=())


def layout_of(entry: Entry, destinations: str = "", *, with_shapes: bool = True) -> bytes:
    """Return the hash of everything in which ranks must agree. ``destinations``: those that name ranks."""
    parts = [(part.dtype, part.goal.name, with_shapes and part.operand.shape) for part in entry.parts]
    forms = [(form.num_parts, dense_shape_of(form)) for form in entry.forms]
    text = repr((structure_of(entry.structure), forms, parts, destinations))
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def structure_of(spec: optree.PyTreeSpec) -> str:
    """Return a structure as text, which is the same in every process that has the same structure."""
    return repr((_stable_text(spec), [[_stable_text(key) for key in path] for path in spec.paths()]))


def _stable_text(value: object) -> str:
    """Return a key, or static data of a pytree, as it is in every process."""
    if isinstance(value, str):
        return value
    # Functions and objects say where they lie in this process.
    text = _ADDRESS.sub("", repr(value))
    return _with_ordered_sets(text) if "{" in text else text


def _with_ordered_sets(text: str) -> str:
    """Return text with what stands in braces in alphabetical order: that of sets depends on a process's hash seed."""
    open_groups = [("", [""])]  # each with its bracket and the items so far
    for piece in _PIECE.findall(text):
        bracket, items = open_groups[-1]
        if piece == ",":
            items.append("")
        elif piece in "([{":
            open_groups.append((piece, [""]))
        elif piece in ")]}" and bracket:
            open_groups.pop()
            inner = [item.strip() for item in items]
            open_groups[-1][1][-1] += bracket + ", ".join(sorted(inner) if bracket == "{" else inner) + piece
        else:
            items[-1] += piece
    return ", ".join(bracket + ", ".join(items) for bracket, items in open_groups)


def dense_shape_of(form: LeafForm) -> tuple[int, ...] | None:
    """Return the shape of the whole array that sparse rows are of; None if they do not say."""
    return None if form.dense_shape is None else read_shape(form.dense_shape)


def description_of(collective: str, fold: Fold, entry: Entry, destinations: str = "") -> str:
    """Return the description of a call that the other ranks get for errors if theirs differ."""
    leaves = [f"{part.dtype} {part.operand.shape}{' at ' * bool(part.path)}{part.path}" for part in entry.parts]
    text = (
        f"{collective}, {fold.op.name}, {f'to {destinations} ' * bool(destinations)}of {', '.join(leaves) or 'nothing'}"
    )
    return text if len(text) <= MOST_DESCRIBED else f"{text[: MOST_DESCRIBED - 20]} … ({len(leaves)} leaves)"


_DEVICE = "cpu:0"
#: An op that gives the dtype that it gets.
_AS_IT_IS = Fold(ReduceOp.MAX)


def read_outs(
    out: Any, entry: Entry, shapes: Sequence[Sequence[int]] | None = None, fold: Fold = _AS_IT_IS
) -> list[Any]:
    """Return the arrays of ``out``, one for each part of an entry; ``out`` may share memory with the value.

    Args:
        out: A value that takes the results.
        entry: The value that this rank brings.
        shapes: The shape of each result; by default that of the part.
        fold: The fold that makes results of parts, which sets their dtypes; by default they have those of the parts.

    Raises:
        OutputError: they cannot take the results.

    """
    wanted = [part.operand.shape for part in entry.parts] if shapes is None else shapes
    parts = [
        replace(part, operand=Operand(part.operand.backend, (), tuple(shape)))
        for part, shape in zip(entry.parts, wanted, strict=True)
    ]
    target = out if isinstance(out, DistributedValues) else PerReplica([out])
    bare = replace(entry, parts=tuple(parts), reading=None, columns=())
    return [arrays[0] for arrays in read_out([target], [reading_of(target)], [bare], fold)]


def read_joining_outs(out: Any, entry: Entry, axis: int) -> list[Any]:
    """Return the arrays of ``out``, which may have any length along ``axis``. In parts that axis is the first.

    Raises:
        OutputError: they cannot take results, whatever their length along the axis.

    """
    target = out if isinstance(out, DistributedValues) else PerReplica([out])
    given = [column[0] for column in leaves_of(reading_of(target)) if column[0] is not None]
    shapes = []
    for index, part in enumerate(entry.parts):
        length, *others = part.operand.shape
        leaf = given[index] if index < len(given) else None
        if isinstance(leaf, ReadArray) and len(leaf.shape) == len(part.operand.shape):
            length = leaf.shape[axis]
        shapes.append(_with_axis(length, others, axis))
    return read_outs(out, entry, shapes)


def read_outs_of_part(value: Any, op: ReduceOpLike, own: Sequence[Any], out: Any) -> list[Any]:
    """Return the arrays of ``out`` that take a part of the reduction of a value, as long as the arrays of ``own``.

    Raises:
        TreefoldError: they cannot take it, or there is no such reduction.

    """
    fold, local = Fold(ReduceOp.parse(op)), PerReplica([value])
    entry = read_entry(local, reading_of(local), _DEVICE, lambda path, leaves: read_folded_leaf(path, leaves, fold))
    return read_outs(out, entry, [part.shape for part in own], fold)


def _with_axis(length: int, others: Sequence[int], axis: int) -> tuple[int, ...]:
    """Return a shape that has ``length`` along ``axis``, which may count from the end, and the others around it."""
    shape = list(others)
    shape.insert(axis % (len(others) + 1), length)
    return tuple(shape)


def memory_of(backend: ArrayBackend, out: Any, dtype: np.dtype[Any]) -> HostArray | None:
    """Return the memory of an array, if a result can be written there as it is; else None."""
    view = backend.host_view(out)
    is_plain = view is not None and view.dtype == dtype and view.flags.c_contiguous and view.flags.aligned
    return view if is_plain else None


def hand_over(backend: ArrayBackend, out: Any, result: HostArray, memory: HostArray | None) -> None:
    """Assign a result to an array; with ``memory`` the array holds it already, and is marked as written."""
    if memory is not None:
        backend.wrote([out])
    else:
        backend.assign(out, backend.from_host(result, _DEVICE))


def reading_of(value: Any) -> Reading:
    """Return the reading of the components of a value."""
    return read_components(value.values if isinstance(value, DistributedValues) else (value,))
