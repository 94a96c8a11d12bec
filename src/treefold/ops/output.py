"""Validation of ``out``: whatever cannot take the result is refused before anything is written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from treefold.backends import HostArray
from treefold.errors import OutputError
from treefold.execution import Operand, Results
from treefold.fold import Fold
from treefold.ops.entry import Entry, at
from treefold.values import DistributedValues, IndexedSlices, flatten

_MAX_WORK = 10_000  # of NumPy's exact overlap test; beyond it, memory counts as shared


def read_out(out: object, entries: Sequence[Entry], fold: Fold) -> Results:
    """Return the arrays of ``out``, one entry per pair, as executors take them: per leaf, per component.

    Raises:
        OutputError: wrong form, count, devices, structure, shape, dtype, framework; sparse or immutable; or memory
            that overlaps a value's without being exactly that value's.

    """
    if not isinstance(out, list | tuple) or len(out) != len(entries):
        raise OutputError.form(out, f"a list with one entry per pair, {len(entries)} here")
    results: Results = []
    for value, entry in zip(out, entries, strict=True):
        results.extend(_read_entry(value, entry, fold))
    is_batch = len(entries) > 1
    parts = [(f"[{index}]" if is_batch else "", part) for index, entry in enumerate(entries) for part in entry.parts]
    _check_overlaps(
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
        if structure != entry.structure:
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


class _Extent(NamedTuple):
    low: int
    high: int
    array: HostArray
    leaf: int
    position: int
    is_out: bool


def _check_overlaps(inputs: list[tuple[str, list[HostArray | None]]], outputs: list[list[HostArray | None]]) -> None:
    """Sweep over all memory in order of address; only neighbours can overlap."""
    extents = []
    for leaf, ((_, sources), targets) in enumerate(zip(inputs, outputs, strict=True)):
        for is_out, arrays in ((False, sources), (True, targets)):
            for position, array in enumerate(arrays):
                if array is not None and array.size:
                    low, high = np.lib.array_utils.byte_bounds(array)
                    extents.append(_Extent(low, high, array, leaf, position, is_out))
    extents.sort(key=lambda extent: extent.low)
    active: list[_Extent] = []
    for extent in extents:
        active = [other for other in active if other.high > extent.low]
        for other in active:
            if (extent.is_out or other.is_out) and not _may_share(extent, other):
                target, use = (extent, other) if extent.is_out else (other, extent)
                owner = "component" if use.is_out else "replica"
                raise OutputError.overlap(
                    target.position,
                    at(inputs[target.leaf][0]),
                    f"{owner} {use.position}'s array{at(inputs[use.leaf][0])}",
                )
        active.append(extent)


def _may_share(one: _Extent, two: _Extent) -> bool:
    if one.is_out != two.is_out and one.leaf == two.leaf and _is_same_memory(one.array, two.array):
        return True
    try:
        return not np.shares_memory(one.array, two.array, max_work=_MAX_WORK)  # type: ignore[arg-type] # NumPy's stub knows -1 and 0 only
    except np.exceptions.TooHardError:
        return False


def _is_same_memory(one: HostArray, two: HostArray) -> bool:
    address = one.__array_interface__["data"][0] == two.__array_interface__["data"][0]
    return bool(address) and one.shape == two.shape and one.strides == two.strides and one.dtype == two.dtype
