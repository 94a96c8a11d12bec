"""Memory that is shared: between arrays of ``out`` and of the values, and between the elements of one array."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from treefold.backends import HostArray
from treefold.calls.entry import at
from treefold.errors import OutputError

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
    """Sweep over all memory in order of address; only neighbours can overlap.

    ``inputs``: for each leaf its path and its footprints in every replica; ``outputs``: those in every component;
    ``are_in_place``: whether these are the replicas' own arrays.

    Raises:
        OutputError: an output shares memory with anything but the whole of one input of its leaf.

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
    """Tell whether elements of one array share memory, as those of a broadcast array or of sliding windows do."""
    if array is None or not array.size:
        return False
    # Two elements that differ first on some axis share memory as their neighbours do that stand at 0 on all axes before
    # it, one of them on this axis, too. From the largest stride on, these lie apart in all usual layouts.
    rest = array.transpose(sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis])))
    for _ in range(array.ndim):
        if _shares_memory(rest[:1], rest[1:]):
            return True
        rest = rest[0, ...]  # a view to the last: memory on a device cannot be read from here
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
