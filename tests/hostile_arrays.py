"""Arrays as users really bring them: strided, reversed, unaligned, byte-swapped, read-only, with memory around them.

Each lies in a buffer filled with guard bytes, also in the gaps between its elements, and can tell afterwards whether
anything but its elements was written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

#: Ways for an array to lie in memory that may be read and written.
LAYOUTS = ("row_major", "column_major", "strided", "reversed", "unaligned", "byte_swapped")
#: Ways that only make sense for an array that is read.
INPUT_LAYOUTS = (*LAYOUTS, "read_only", "broadcast")

_GUARD = 0xA5
_MARGIN = 64  # bytes before and behind, enough for a stray vector store


@dataclass(frozen=True)
class Hostile:
    """An array in a layout of ``INPUT_LAYOUTS``, with given values, and the memory around it.

    ``"broadcast"`` has one element in memory, the first of the values, at every position.
    """

    values: Array
    layout: str = "row_major"
    array: Array = field(init=False)
    _memory: npt.NDArray[np.uint8] = field(init=False, repr=False)
    _before: npt.NDArray[np.uint8] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Lay the values out."""
        values = np.asarray(self.values)
        dtype = values.dtype.newbyteorder("S") if self.layout == "byte_swapped" else values.dtype
        strides, reach = _strides(values.shape, dtype.itemsize, self.layout)
        # The margin is a multiple of every alignment, so that only "unaligned" arrays are unaligned.
        start = _MARGIN + (self.layout == "unaligned")
        extent = sum(abs(stride) * (length - 1) for stride, length in zip(strides, values.shape, strict=True) if length)
        memory = _aligned(start + extent + dtype.itemsize + _MARGIN)
        memory[...] = _GUARD
        array = np.ndarray(values.shape, dtype, buffer=memory, offset=start + reach, strides=strides)
        if values.size:
            array[...] = values.reshape(-1)[0] if self.layout == "broadcast" else values
        array.flags.writeable = self.layout not in {"read_only", "broadcast"}
        object.__setattr__(self, "array", array)
        object.__setattr__(self, "_memory", memory)
        object.__setattr__(self, "_before", memory.copy())

    def anything_changed(self) -> bool:
        """Tell whether a byte in the array or around it is another than in the beginning."""
        return not np.array_equal(self._memory, self._before)

    def guards_changed(self) -> bool:
        """Tell whether a byte that belongs to no element is another than in the beginning."""
        return not np.array_equal(self._without_elements(self._memory), self._without_elements(self._before))

    def _without_elements(self, memory: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Return a copy of a state of the memory with all elements zero."""
        copied = memory.copy()
        if self.array.size:
            start = self.array.__array_interface__["data"][0] - self._memory.ctypes.data
            view = np.ndarray(self.array.shape, self.array.dtype, copied, start, self.array.strides)
            view[...] = 0
        return copied


def _strides(shape: Sequence[int], itemsize: int, layout: str) -> tuple[tuple[int, ...], int]:
    """Return the strides in bytes, and how far the first element lies behind the lowest address."""
    if layout == "broadcast":
        return (0,) * len(shape), 0
    step = itemsize * (3 if layout == "strided" else 1)
    strides = [0] * len(shape)
    order = range(len(shape)) if layout == "column_major" else reversed(range(len(shape)))
    for axis in order:
        strides[axis] = step
        # Another gap on every axis, so that a strided array cannot be read as a flat one.
        step *= max(shape[axis], 1) + (layout == "strided")
    if layout != "reversed":
        return tuple(strides), 0
    reach = sum(stride * (length - 1) for stride, length in zip(strides, shape, strict=True) if length)
    return tuple(-stride for stride in strides), reach


def _aligned(nbytes: int) -> npt.NDArray[np.uint8]:
    memory = np.empty(nbytes + _MARGIN, np.uint8)
    start = -memory.ctypes.data % _MARGIN
    return memory[start : start + nbytes]
