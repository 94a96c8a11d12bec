"""Tensors that are stored in another order than row by row: laid down on disk, and taken from there in order."""

from __future__ import annotations

import contextlib
import mmap
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from treefold.cli.average.checkpoint import Bytes, Contents
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
