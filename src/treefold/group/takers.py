"""Arrays of ``out`` that take what a group moves: read before anything is told, written when all ranks have voted."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from treefold.backends import ArrayBackend, HostArray
from treefold.calls.entry import Entry, read_entry
from treefold.calls.leaves import read_folded_leaf
from treefold.calls.output import read_out
from treefold.calls.reader import Leaf, Reading, leaves_of, read_components
from treefold.execution import Operand
from treefold.fold import Fold
from treefold.reduce_op import ReduceOp, ReduceOpLike
from treefold.values import DistributedValues, PerReplica

_DEVICE = "cpu:0"
#: An op that gives the dtype that it gets.
_AS_IT_IS = Fold(ReduceOp.MAX)


def read_takers(
    out: Any, entry: Entry, shapes: Sequence[Sequence[int]] | None = None, fold: Fold = _AS_IT_IS
) -> list[Any]:
    """Return the arrays of ``out``, one for each part of an entry. They may share memory with the value.

    ``shapes``: of the results, by default those of the parts. ``fold``: what makes them of the parts.

    Raises:
        OutputError: they cannot take the results.

    """
    wanted = [part.operand.shape for part in entry.parts] if shapes is None else shapes
    parts = [
        dataclasses.replace(part, operand=Operand(part.operand.backend, (), tuple(shape)))
        for part, shape in zip(entry.parts, wanted, strict=True)
    ]
    target = out if isinstance(out, DistributedValues) else PerReplica([out])
    bare = dataclasses.replace(entry, parts=tuple(parts), reading=None, columns=())
    return [arrays[0] for arrays in read_out([target], [_reading_of(target)], [bare], fold)]


def read_joining_takers(out: Any, entry: Entry, axis: int) -> list[Any]:
    """Return the arrays of ``out``, which may have any length along ``axis``, that of the parts' first axis.

    Raises:
        OutputError: they cannot take results, whatever their length along the axis.

    """
    target = out if isinstance(out, DistributedValues) else PerReplica([out])
    given = [column[0] for column in leaves_of(_reading_of(target)) if column[0] is not None]
    shapes = []
    for index, part in enumerate(entry.parts):
        length, *others = part.operand.shape
        leaf = given[index] if index < len(given) else None
        if isinstance(leaf, Leaf) and len(leaf.shape) == len(part.operand.shape):
            length = leaf.shape[axis]
        shapes.append(_with_axis(length, others, axis))
    return read_takers(out, entry, shapes)


def read_takers_of_part(value: Any, op: ReduceOpLike, own: Sequence[Any], out: Any) -> list[Any]:
    """Return the arrays of ``out`` that take a part of the reduction of a value, as long as the arrays of ``own``.

    Raises:
        TreefoldError: they cannot take it, or there is no such reduction.

    """
    fold, local = Fold(ReduceOp.parse(op)), PerReplica([value])
    entry = read_entry(local, _reading_of(local), _DEVICE, lambda path, leaves: read_folded_leaf(path, leaves, fold))
    return read_takers(out, entry, [part.shape for part in own], fold)


def _with_axis(length: int, others: Sequence[int], axis: int) -> tuple[int, ...]:
    """Return a shape that has ``length`` along ``axis``, which may count from the end, and the others around it."""
    shape = list(others)
    shape.insert(axis % (len(others) + 1), length)
    return tuple(shape)


def memory_of(backend: ArrayBackend, taker: Any, dtype: np.dtype[Any]) -> HostArray | None:
    """Return the memory of an array, if a result can be written there as it is; else None."""
    view = backend.host_view(taker)
    return view if view is not None and view.dtype == dtype and view.flags.c_contiguous else None


def hand_over(backend: ArrayBackend, taker: Any, result: HostArray, memory: HostArray | None) -> None:
    """Let an array hold a result, which already is in its memory if there is ``memory``."""
    if memory is not None:
        backend.wrote([taker])
    else:
        backend.assign(taker, backend.from_host(result, _DEVICE))


def _reading_of(target: DistributedValues) -> Reading:
    return read_components(target.values)
