"""Validation of ``out``: an array that cannot take its result is refused before anything is written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from treefold.backends import HostArray
from treefold.calls.entry import Entry, Part, at, read_devices
from treefold.calls.reader import Brought, ReadArray, Reading, Slices, leaves_of, read_components, structures_of
from treefold.errors import OutputError
from treefold.execution import Operand, Results
from treefold.fold import Fold
from treefold.values import DistributedValues, are_same

_COMPONENT = "Component {} of out"


def read_out(out: object, readings: Sequence[Reading | None], entries: Sequence[Entry], fold: Fold) -> Results:
    """Return the arrays of ``out``, one entry per pair, as executors take them: per leaf, per component.

    ``readings``: each entry as it was read, None if it is not a distributed value.

    Raises:
        OutputError: The form, count, devices, structure, shape, dtype or framework is wrong; an array is sparse or
            immutable; or its memory overlaps an input's without being exactly that input's, or overlaps itself.

    """
    if not isinstance(out, list | tuple):
        raise OutputError.form(out, f"a list with one entry per pair, {len(entries)} here")
    if len(out) != len(entries):
        raise OutputError.entries(len(out), len(entries))
    leaves: list[list[ReadArray]] = []
    are_in_place: list[bool] = []
    for value, reading, entry in zip(out, readings, entries, strict=True):
        leaves.extend(_read_entry(value, reading, entry, fold))
        are_in_place += [reading is not None and reading is entry.reading] * len(entry.parts)
    is_batch = len(entries) > 1
    parts = [(f"[{index}]" if is_batch else "", part) for index, entry in enumerate(entries) for part in entry.parts]
    check_overlaps(
        [(f"{pair}{part.path}", _footprints(part.operand)) for pair, part in parts],
        [[_footprint(leaf) for leaf in targets] for targets in leaves],
        are_in_place,
    )
    return [tuple(leaf.array for leaf in targets) for targets in leaves]


def _read_entry(out: object, reading: Reading | None, entry: Entry, fold: Fold) -> list[list[ReadArray]]:
    count = len(entry.destinations)
    if reading is None:
        if count != 1 or isinstance(out, list | tuple | dict):
            words = f"a PerReplica or Mirrored with a component for each of the {count} destinations"
            raise OutputError.form(out, words)
        reading = read_components((out,))
    structures = structures_of(reading)
    if len(structures) != count:
        raise OutputError.count(len(structures), entry.destinations)
    for index, structure in enumerate(structures):
        if not are_same(structure, entry.structure):
            raise OutputError.structure(index, _brief(structure), _brief(entry.structure))
    is_in_place = reading is entry.reading
    columns = entry.columns if is_in_place else leaves_of(reading)
    # In place, errors name the replica: all_reduce_ has no argument ``out``.
    owner = "Replica {}" if is_in_place else _COMPONENT
    if isinstance(out, DistributedValues):
        _check_devices(read_devices(out, columns), entry.destinations)
    results = []
    parts = iter(entry.parts)
    for column, form in zip(columns, entry.forms, strict=True):
        part = next(parts) if form.num_parts else None
        if part is None:
            _check_none(column)
        elif form.num_parts > 1 or any(isinstance(leaf, Slices) for leaf in column):
            is_wrong = [form.num_parts > 1 or isinstance(leaf, Slices) for leaf in column]
            words = "an array; sparse results are always new"
            raise OutputError.leaf(owner.format(is_wrong.index(True)), at(part.path), "IndexedSlices", words)
        else:
            results.append([_checked(owner.format(index), leaf, part, fold) for index, leaf in enumerate(column)])
    return results


def _check_devices(found: Sequence[str], destinations: Sequence[str]) -> None:
    """Check that arrays on a device lie on their destination; host arrays stand for any ``cpu:k``."""
    for index, (device, destination) in enumerate(zip(found, destinations, strict=True)):
        # Host arrays without named devices count as cpu:0, cpu:1 …, which no caller has chosen: any ``cpu:k`` is right.
        if device not in {destination, f"cpu:{index}"}:
            raise OutputError(
                f"out is on {device} where the destinations are "
                f"{destination}. Give one component per destination, in their order. Nothing "
                "was written."
            )


def _check_none(column: Sequence[Brought]) -> None:
    for component, leaf in enumerate(column):
        if leaf is not None:
            given = leaf.slices if isinstance(leaf, Slices) else leaf.array
            raise OutputError.leaf(
                _COMPONENT.format(component), "", f"a {type(given).__name__}", "None, as every replica has"
            )


def _checked(owner: str, leaf: Brought, part: Part, fold: Fold) -> ReadArray:
    backend, expected = part.operand.backend, (part.operand.shape, fold.result_dtype(part.dtype))
    words = f"a writable {backend.name} array of {expected[1]} {expected[0]}"
    if not isinstance(leaf, ReadArray) or leaf.backend is not backend or not backend.owns(leaf.array):
        got = f"a {type(leaf.array if isinstance(leaf, ReadArray) else leaf).__name__}"
    elif leaf.refusal is not None:
        got = leaf.refusal.got
    elif (leaf.shape, leaf.dtype) != expected:
        got = f"{leaf.dtype} {leaf.shape}"
    elif not backend.is_writable(leaf.array):
        got = "an array that cannot be written"
    elif overlaps_itself(_footprint(leaf)):
        got = "an array whose elements share memory"
    else:
        refusal = backend.write_refusal(leaf.array)
        if refusal is not None:
            raise OutputError.refused(owner, at(part.path), refusal.got, refusal.advice)
        return leaf
    raise OutputError.leaf(owner, at(part.path), got, words)


def _brief(structure: object) -> str:
    return str(structure).removeprefix("PyTreeSpec(").partition(", NoneIsLeaf")[0]


def _footprint(leaf: ReadArray) -> HostArray | None:
    return leaf.view if leaf.view is not None or leaf.backend is None else leaf.backend.footprint(leaf.array)


def _footprints(operand: Operand) -> list[HostArray | None]:
    views = operand.views or (None,) * len(operand.arrays)
    pairs = zip(operand.arrays, views, strict=True)
    return [operand.backend.footprint(array) if view is None else view for array, view in pairs]


_MAX_WORK = 10_000  # of NumPy's exact overlap test; beyond it, memory counts as shared


class _Extent(NamedTuple):
    low: int
    high: int
    array: HostArray
    leaf: int
    position: int
    is_out: bool


def check_overlaps(
    inputs: list[tuple[str, list[HostArray | None]]], outputs: list[list[HostArray | None]], are_in_place: list[bool]
) -> None:
    """Refuse outputs that share memory, unless with the whole of one input of the same leaf.

    All memory is swept in order of address: an extent is compared with those that are still open where it begins.

    Args:
        inputs: Each leaf's path, and its footprints in every replica.
        outputs: Each leaf's footprints in every component.
        are_in_place: For each leaf, whether its outputs are the replicas' own arrays.

    Raises:
        OutputError: An output shares memory with anything else.

    """
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
                owner = "component" if use.is_out and not are_in_place[use.leaf] else "replica"
                other_words = f"{owner} {use.position}'s array{at(inputs[use.leaf][0])}"
                sentence = OutputError.overlap_in_place if are_in_place[target.leaf] else OutputError.overlap
                raise sentence(target.position, at(inputs[target.leaf][0]), other_words)
        active.append(extent)


def overlaps_itself(array: HostArray | None) -> bool:
    """Return whether elements of one array share memory, as in a broadcast array or in sliding windows."""
    if array is None or not array.size:
        return False
    # Let two elements that share memory differ first on axis k. Shifted to index 0 of the axes before k, and one of
    # them to index 0 of k, they still share it. So for each axis, compare index 0 with all others. Axes are sorted by
    # stride, the largest first: in usual layouts the two halves then lie apart.
    rest = array.transpose(sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis])))
    for _ in range(array.ndim):
        if _shares_memory(rest[:1], rest[1:]):
            return True
        rest = rest[0, ...]  # ``...`` keeps a 0-d view: a scalar would read memory that may be on a device
    return False


def _may_share(one: _Extent, two: _Extent) -> bool:
    if one.is_out != two.is_out and one.leaf == two.leaf and _is_same_memory(one.array, two.array):
        return True
    return not _shares_memory(one.array, two.array)


def _shares_memory(one: HostArray, two: HostArray) -> bool:
    try:
        return np.shares_memory(one, two, max_work=_MAX_WORK)  # type: ignore[arg-type] # NumPy's stub knows -1 and 0 only
    except np.exceptions.TooHardError:
        return True


def _is_same_memory(one: HostArray, two: HostArray) -> bool:
    address = one.__array_interface__["data"][0] == two.__array_interface__["data"][0]
    return bool(address) and one.shape == two.shape and one.strides == two.strides and one.dtype == two.dtype
