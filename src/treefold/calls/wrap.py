"""Putting results back into the structure of the values they came from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from treefold.calls.entry import Entry
from treefold.execution import Results
from treefold.plan import Plan
from treefold.values import IndexedSlices, Mirrored, unflatten


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
    """Return gathered arrays, which executors make along their first axis, with that axis where it belongs."""
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
