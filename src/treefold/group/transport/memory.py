"""This process's memory as arrays of bytes, and the arrays of a call over hosts."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from treefold.backends import HostArray, Row
from treefold.backends.numpy import NumpyBackend
from treefold.execution import native
from treefold.execution.actions import FlatMemory, LeafActions
from treefold.execution.program_walk import Walk
from treefold.fold import Fold
from treefold.group.contributions import address_of
from treefold.plan import Plan
from treefold.plan.ir import Buffer, Role

_NUMPY = NumpyBackend()


def memory_at(address: int, nbytes: int, owner: object = None) -> HostArray:
    """Return the bytes at an address of this process, which must stay there; views of them keep ``owner``."""
    if not nbytes:
        return np.empty(0, np.uint8)
    memory: Any = (ctypes.c_uint8 * nbytes).from_address(address)
    # An engine may read what is under way long after a call has failed, and after its caller has dropped the array.
    memory.owner = owner
    return np.ctypeslib.as_array(memory)


def arrays_of(row: Row) -> list[HostArray]:
    """Return the arrays of a row, which they keep, one-dimensional, writable, whatever their framework."""
    length = int(np.prod(row.shape, dtype=np.int64))
    return [memory_at(address, length * row.dtype.itemsize, row).view(row.dtype) for address in row.addresses]


class Pieces(list[tuple[int, int, int]]):
    """Pieces of a stream: where they begin there, their addresses and bytes. Who keeps these keeps the memory, too."""

    def __init__(self, placed: Iterable[tuple[int, HostArray]]) -> None:
        """Give row-major arrays to a stream."""
        self._arrays = [(at, array) for at, array in placed if array.nbytes]
        super().__init__((at, address_of(array), array.nbytes) for at, array in self._arrays)


class CallMemory:
    """The memory of one rank's call: what it brings, and where its results are made, before anything moves."""

    def __init__(
        self, plan: Plan, walk: Walk, rank: int, fold: Fold, contributions: Sequence[Sequence[HostArray]]
    ) -> None:
        """Take memory for everything that the rank holds. ``contributions``: this rank's arrays of each leaf, flat.

        Raises:
            MemoryError: there is none.

        """
        self.walk, self._plan = walk, plan
        self.leaves = [
            LeafActions(leaf, 0, _NUMPY, (-1,), path, fold, None)
            for leaf, path in zip(plan.leaves, plan.paths, strict=True)
        ]
        counts = [0] * len(plan.leaves)
        self.results: list[Any] = [None] * len(plan.leaves)
        arrays: list[Any] = []
        own = [iter(some) for some in contributions]
        for index, buffer in enumerate(plan.buffers):
            # Of all ranks: a mean divides by the contributions of the whole group.
            counts[buffer.leaf] += buffer.role is Role.INPUT
            array = None
            if walk.holder(index) == rank and index not in walk.aliases:
                array = next(own[buffer.leaf]) if buffer.role is Role.INPUT else self._new(buffer)
            if array is not None and buffer.role is Role.OUTPUT:
                self.results[buffer.leaf] = array
            arrays.append(array)
        for index, source in walk.aliases.items():
            # Views of contributions: walks read them where they lie, because no plan writes an input.
            arrays[index] = arrays[source.buffer][source.start : source.stop]
        self.leaves = [one._replace(num_contributions=count) for one, count in zip(self.leaves, counts, strict=True)]
        self.flat = FlatMemory(self.leaves, plan.buffers, arrays, np.copyto)

    def itemsize(self, buffer: int) -> int:
        """Return the bytes of an element of a buffer, whoever holds it."""
        one = self._plan.buffers[buffer]
        return np.dtype(self.leaves[one.leaf].dtype(one.role)).itemsize

    def _new(self, buffer: Buffer) -> HostArray:
        dtype = np.dtype(self.leaves[buffer.leaf].dtype(buffer.role))
        return native.new_result((buffer.length,), dtype)
