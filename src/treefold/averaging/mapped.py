"""Files that are opened once, and seen through memory maps: nothing is copied that lies in order."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Self

import numpy as np

from treefold.averaging.tensors import Bytes, Spec
from treefold.errors import CheckpointError

if sys.platform != "win32":
    import resource

_PAGE = mmap.PAGESIZE
_MOST_FILES = 10_240  # of macOS; others allow more


class OpenFile:
    """A regular file, open until ``close``: what was checked is what is read, whatever becomes of its name.

    Raises:
        OSError: it cannot be opened, or is no regular file.

    """

    def __init__(self, path: Path) -> None:
        """Open the file."""
        self.path = path
        # A pipe would wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            os.close(descriptor)
            reason = "it is a directory" if stat.S_ISDIR(found.st_mode) else "it is not a regular file"
            raise OSError(errno.EINVAL, reason, str(path))
        self.file: BinaryIO = os.fdopen(descriptor, "rb")
        self.nbytes, self.mode = found.st_size, stat.S_IMODE(found.st_mode)
        self._map: mmap.mmap | None = None
        self._bytes = np.empty(0, np.uint8)
        self._resident = 0

    def read(self, start: int, nbytes: int) -> bytes:
        """Return bytes from a position on; fewer where the file ends."""
        self.file.seek(start)
        return self.file.read(nbytes)

    def read_into(self, start: int, block: Bytes) -> int:
        """Copy bytes into a block and return how many there were."""
        if hasattr(os, "preadv"):
            return os.preadv(self.file.fileno(), [block.data], start)
        self.file.seek(start)
        return self.file.readinto(block.data)  # type: ignore[attr-defined,no-any-return]  # typeshed: not every file

    def view(self, start: int, stop: int, *, end: int) -> Bytes:
        """Return bytes, and tell the system that those up to ``end`` come next; what an earlier view showed may go.

        Fewer bytes than asked for where the file has become shorter: to touch what is gone ends the process.
        """
        size = os.fstat(self.file.fileno()).st_size
        if self._map is None and 0 < self.nbytes <= size:
            self._map = mmap.mmap(self.file.fileno(), self.nbytes, access=mmap.ACCESS_READ)
            self._bytes = np.frombuffer(self._map, np.uint8)
        available = max(min(stop, size), start)
        self._advise("MADV_DONTNEED", self._resident, start // _PAGE * _PAGE)
        self._advise("MADV_WILLNEED", stop // _PAGE * _PAGE, min(2 * stop - start, end))
        self._resident = start // _PAGE * _PAGE
        return self._bytes[start:available]

    def forget(self, stop: int) -> None:
        """Let go of what views showed, up to ``stop``: a checkpoint may have any number of files.

        The map goes, too, with its last view: it holds a descriptor of its own.
        """
        self._advise("MADV_DONTNEED", self._resident, stop)
        self._map, self._bytes = None, np.empty(0, np.uint8)

    def _advise(self, advice: str, start: int, stop: int) -> None:
        if stop > start and self._map is not None and hasattr(mmap, advice):  # Windows has none
            self._map.madvise(getattr(mmap, advice), start, stop - start)

    def close(self) -> None:
        """Close the file; the map goes with its last view."""
        self.file.close()

    def __enter__(self) -> Self:
        """Return the file."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file."""
        self.close()


@contextlib.contextmanager
def many_files() -> Iterator[None]:
    """Let the process open as many files as the system allows it: shards of all inputs are open together."""
    if sys.platform == "win32":  # it has no such limit
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    is_raised = soft != resource.RLIM_INFINITY and soft < most
    if is_raised:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    try:
        yield
    finally:
        if is_raised:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@dataclass(frozen=True, slots=True)
class Span:
    """A tensor whose bytes lie in a file in a row, as they are."""

    spec: Spec
    file: OpenFile
    start: int

    @contextlib.contextmanager
    def open(self) -> Iterator[MappedContents]:
        """Open it."""
        stop = self.start + self.spec.nbytes
        try:
            yield MappedContents(self.file, self.start, stop)
        finally:
            self.file.forget(stop)

    def read_into(self, block: Bytes, name: str) -> None:
        """Read a small tensor at once.

        Raises:
            CheckpointError: the file has become shorter, or cannot be read.

        """
        try:
            count = self.file.read_into(self.start, block)
        except OSError as error:
            raise CheckpointError.unreadable(self.file.path, error) from None
        if count < block.size:
            raise CheckpointError.truncated(self.file.path, name)


class MappedContents:
    """Bytes of a file from a position to another."""

    def __init__(self, file: OpenFile, start: int, stop: int) -> None:
        """Start at the beginning."""
        self._file, self._position, self._stop = file, start, stop

    def take(self, nbytes: int) -> Bytes:
        """Return a view of the file."""
        start = self._position
        self._position = min(start + nbytes, self._stop)
        return self._file.view(start, self._position, end=self._stop)
