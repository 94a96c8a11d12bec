"""Tensors that are stored in another order than row by row: laid down on disk, and taken from there in order."""

from __future__ import annotations

import contextlib
import math
import mmap
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from treefold.averaging.tensors import Bytes, Contents, Spec, Tensor
from treefold.errors import CheckpointError

_SPOOL_BYTES = 1 << 20
_CHUNK = 1 << 14  # elements that are put in order at once


@contextlib.contextmanager
def spooled(contents: Contents, nbytes: int, directory: Path, *, path: Path, name: str) -> Iterator[Bytes]:
    """Give contents, at least one byte, as the bytes of a mapped file without a name: on disk, and not in memory.

    Raises:
        CheckpointError: the tensor ``name`` of the file ``path`` ends too early.
        OSError: the disk is full.

    """
    with tempfile.TemporaryFile(dir=directory, prefix=".treefold-") as file:
        while file.tell() < nbytes:
            piece = contents.take(min(_SPOOL_BYTES, nbytes - file.tell()))
            if not piece.size:
                raise CheckpointError.truncated(path, name)
            file.write(piece.data)
        file.flush()
        yield np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)


@contextlib.contextmanager
def gathered(cells: Sequence[Cell], spec: Spec, directory: Path, *, name: str) -> Iterator[Bytes]:
    """Give the contents of a tensor that is stored as cells of a grid, put together on disk.

    Raises:
        CheckpointError: a cell ends too early.
        OSError: the disk is full.

    """
    with tempfile.TemporaryFile(dir=directory, prefix=".treefold-") as file:
        file.truncate(spec.nbytes)
        memory = mmap.mmap(file.fileno(), spec.nbytes)
        whole = np.ndarray(spec.shape, spec.numpy_dtype, memory)
        for cell in cells:
            row = math.prod(cell.tensor.spec.shape[1:]) * spec.itemsize
            step = max(_SPOOL_BYTES // max(row, 1), 1)
            inner = tuple(slice(at, at + n) for at, n in zip(cell.offsets[1:], cell.tensor.spec.shape[1:], strict=True))
            with cell.tensor.open() as contents:
                for start in range(0, cell.tensor.spec.shape[0], step):
                    count = min(step, cell.tensor.spec.shape[0] - start)
                    piece = contents.take(count * row)
                    if piece.size < count * row:
                        raise CheckpointError.truncated(directory, name)
                    first = cell.offsets[0] + start
                    shape = (count, *cell.tensor.spec.shape[1:])
                    whole[(slice(first, first + count), *inner)] = piece.view(spec.numpy_dtype).reshape(shape)
            if hasattr(mmap, "MADV_DONTNEED"):  # what is written is the file's, and need not stay in memory
                memory.madvise(mmap.MADV_DONTNEED)
        yield np.frombuffer(memory, np.uint8)


@dataclass(frozen=True, slots=True)
class Cell:
    """A tensor that is a part of another, and where it begins in it."""

    offsets: tuple[int, ...]
    tensor: Tensor


class ReorderedContents:
    """An array of any strides and any byte order, row by row in the native one."""

    def __init__(self, array: npt.NDArray[Any], *steps: Callable[..., object]) -> None:
        """Start at the beginning. ``steps``: NumPy's functions that each block goes through, as ``np.conjugate``."""
        self._dtype, self._steps, self._next = array.dtype.newbyteorder("="), steps, 0
        flags, keep = ["external_loop", "buffered", "ranged"], [["readonly"]]
        self._elements = np.nditer(array, flags, keep, [self._dtype], order="C", casting="equiv", buffersize=_CHUNK)  # type: ignore[call-overload]  # typeshed: lists of literals only

    def take(self, nbytes: int) -> Bytes:
        """Copy what comes next into a new block."""
        block = np.empty(nbytes // self._dtype.itemsize, self._dtype)
        self._elements.iterrange = (self._next, self._next + block.size)
        self._next += block.size
        done = 0
        for chunk in self._elements:
            block[done : done + chunk.size] = chunk
            done += chunk.size
        for step in self._steps:
            step(block, out=block)
        return block.view(np.uint8)
