"""Files seen through memory maps: nothing is copied that lies in order, and what was read is let go of."""

from __future__ import annotations

import errno
import mmap
import os
from typing import BinaryIO

import numpy as np

from treefold.cli.average.checkpoint import Bytes

_PAGE = mmap.PAGESIZE
_PIPE_BYTES = 1 << 16


class MappedFile:
    """A file's bytes as one read-only array, of which little is resident at a time."""

    def __init__(self, file: BinaryIO) -> None:
        """Map the whole file, which must not be empty."""
        self._file = file
        self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._bytes = np.frombuffer(self._map, np.uint8)
        self._resident = 0

    def view(self, start: int, stop: int, *, end: int) -> Bytes:
        """Return bytes, and tell the system that those up to ``end`` come next; what an earlier view showed may go.

        Fewer bytes than asked for where the file has become shorter: to touch what is gone ends the process.
        """
        available = max(min(stop, os.fstat(self._file.fileno()).st_size), start)
        self._advise("MADV_DONTNEED", self._resident, start // _PAGE * _PAGE)
        self._advise("MADV_WILLNEED", stop // _PAGE * _PAGE, min(2 * stop - start, end))
        self._resident = start // _PAGE * _PAGE
        return self._bytes[start:available]

    def _advise(self, advice: str, start: int, stop: int) -> None:
        if stop > start and hasattr(mmap, advice):  # Windows has none
            self._map.madvise(getattr(mmap, advice), start, stop - start)


class MappedContents:
    """One tensor of a mapped file."""

    def __init__(self, file: MappedFile, start: int, stop: int) -> None:
        """Start at its beginning."""
        self._file, self._position, self._stop = file, start, stop

    def take(self, nbytes: int) -> Bytes:
        """Return a view of the file."""
        start = self._position
        self._position = min(start + nbytes, self._stop)
        return self._file.view(start, self._position, end=self._stop)


class GuardedContents:
    """Bytes of a map that is not ours, whose file may become shorter while it is read.

    To load a byte that is gone would end the process (SIGBUS), and there is no file to ask for its size. So the system
    copies the bytes, through a pipe; it stops where they end.
    """

    def __init__(self, contents: Bytes) -> None:
        """Start at the beginning."""
        self._left, self._buffer = contents, np.empty(0, np.uint8)
        self._out, self._in = os.pipe()
        os.set_blocking(self._in, False)  # a pipe takes what it has room for, and its room is the system's to choose

    def take(self, nbytes: int) -> Bytes:
        """Copy into a buffer."""
        if self._buffer.size < nbytes:
            self._buffer = np.empty(nbytes, np.uint8)
        wanted, self._left = self._left[:nbytes], self._left[nbytes:]
        done = 0
        while done < wanted.size and (count := self._copy(wanted[done:], self._buffer[done:])):
            done += count
        return self._buffer[:done]

    def _copy(self, source: Bytes, target: Bytes) -> int:
        try:
            count = os.write(self._in, source[:_PIPE_BYTES].data)
        except OSError as error:
            if error.errno != errno.EFAULT:
                raise
            return 0
        return os.readv(self._out, [target[:count].data])

    def close(self) -> None:
        """Close the pipe."""
        os.close(self._in)
        os.close(self._out)
