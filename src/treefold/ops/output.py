"""Validation of ``out``: whatever cannot take the result is refused before anything is written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from treefold.backends import HostArray
from treefold.errors import OutputError
from treefold.execution import Operand, Results
from treefold.fold import Fold
from treefold.ops.entry import Entry, at
from treefold.ops.overlap import check_overlaps, overlaps_itself
from treefold.values import DistributedValues, IndexedSlices, are_same, flatten


def read_out(out: object, entries: Sequence[Entry], fold: Fold) -> Results:
    """Return the arrays of ``out``, one entry per pair, as executors take them: per leaf, per component.

    Raises:
        OutputError: wrong form, count, devices, structure, shape, dtype, framework; sparse or immutable; or memory
            that overlaps a value's without being exactly that value's, or an array's own.

    """
    if not isinstance(out, list | tuple):
        raise OutputError.form(out, f"a list with one entry per pair, {len(entries)} here")
    if len(out) != len(entries):
        raise OutputError.entries(len(out), len(entries))
    results: Results = []
    for value, entry in zip(out, entries, strict=True):
        results.extend(_read_entry(value, entry, fold))
    is_batch = len(entries) > 1
    parts = [(f"[{index}]" if is_batch else "", part) for index, entry in enumerate(entries) for part in entry.parts]
    check_overlaps(
        [(f"{pair}{part.path}", _footprints(part.operand, part.operand.arrays)) for pair, part in parts],
        [_footprints(part.operand, arrays) for (_, part), arrays in zip(parts, results, strict=True)],
    )
    return results


def _read_entry(out: object, entry: Entry, fold: Fold) -> Results:
    count = len(entry.destinations)
    if isinstance(out, DistributedValues):
        components: Sequence[Any] = out.values
    elif count == 1 and not isinstance(out, list | tuple | dict):
        components = (out,)
    else:
        raise OutputError.form(out, f"a PerReplica or Mirrored with a component for each of the {count} destinations")
    if len(components) != count:
        raise OutputError.count(len(components), entry.destinations)
    results: list[list[Any]] = [[] for _ in entry.parts]
    for index, component in enumerate(components):
        leaves, structure = flatten(component)
        if not are_same(structure, entry.structure):
            raise OutputError.structure(index, _brief(structure), _brief(entry.structure))
        _check_device(out, index, leaves, entry.destinations)
        for position, array in enumerate(_arrays(index, leaves, entry, fold)):
            results[position].append(array)
    return [tuple(arrays) for arrays in results]


def _check_device(out: object, index: int, leaves: list[Any], destinations: tuple[str, ...]) -> None:
    """Arrays on a device must stand where their destination does; host arrays stand for any ``cpu:k``."""
    if isinstance(out, DistributedValues):
        found = out.device_of(index, leaves)
        # Host arrays without named devices count as cpu:0, cpu:1 …; that is no statement to be held to.
        if found != destinations[index] and found != f"cpu:{index}":
            raise OutputError.devices([found], [destinations[index]])


def _arrays(component: int, leaves: list[Any], entry: Entry, fold: Fold) -> list[Any]:
    arrays: list[Any] = []
    for leaf, form in zip(leaves, entry.forms, strict=True):
        if form.num_parts == 0:
            if leaf is not None:
                raise OutputError.leaf(component, "", f"a {type(leaf).__name__}", "None, as every replica has")
            continue
        part = entry.parts[len(arrays)]
        if form.num_parts > 1 or isinstance(leaf, IndexedSlices):
            raise OutputError.leaf(component, at(part.path), "IndexedSlices", "an array; sparse results are always new")
        backend, expected = part.operand.backend, (part.operand.shape, fold.result_dtype(part.dtype))
        words = f"a writable {backend.name} array of {expected[1]} {expected[0]}"
        refusal = backend.refusal(leaf) if backend.owns(leaf) else None
        if refusal is not None:
            raise OutputError.leaf(component, at(part.path), refusal.got, words)
        if not backend.owns(leaf) or backend.shape_dtype(leaf) != expected:
            raise OutputError.leaf(component, at(part.path), _describe(backend, leaf), words)
        if not backend.is_writable(leaf):
            raise OutputError.leaf(component, at(part.path), "an array that cannot be written", words)
        if overlaps_itself(backend.footprint(leaf)):
            raise OutputError.leaf(component, at(part.path), "an array whose elements share memory", words)
        arrays.append(leaf)
    return arrays


def _describe(backend: Any, leaf: Any) -> str:
    if not backend.owns(leaf):
        return f"a {type(leaf).__name__}"
    shape, dtype = backend.shape_dtype(leaf)
    return f"{dtype} {shape}"


def _brief(structure: object) -> str:
    return str(structure).removeprefix("PyTreeSpec(").partition(", NoneIsLeaf")[0]


def _footprints(operand: Operand, arrays: Sequence[Any]) -> list[HostArray | None]:
    return [operand.backend.footprint(array) for array in arrays]
