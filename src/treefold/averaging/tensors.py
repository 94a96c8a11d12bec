"""Shared by all formats of checkpoints: named tensors, each read as bytes from its first to its last.

Files are opened once and read through memory maps. Tensors that are stored row by row are not copied. Others are put in
order while they are read.
"""

from __future__ import annotations

import contextlib
import errno
import math
import mmap
import os
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from treefold.dtypes import DTYPES, numpy_dtype
from treefold.errors import CheckpointError

Bytes: TypeAlias = npt.NDArray[np.uint8]
_PAGE = mmap.PAGESIZE
_MOST_FILES = 10_240  # of macOS; others allow more
_SPOOL_BYTES = 1 << 20
_CHUNK = 1 << 14  # elements that are put in order at once


@dataclass(frozen=True, slots=True)
class Spec:
    """The dtype and shape of a tensor. ``dtype`` is a name in the table of dtypes."""

    dtype: str
    shape: tuple[int, ...]
    #: Bytes of the contents.
    nbytes: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        """Compute the bytes once, because they are asked for often."""
        object.__setattr__(self, "nbytes", math.prod(self.shape) * self.itemsize)

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The dtype as NumPy's object; for some dtypes this imports a package."""
        return numpy_dtype(self.dtype)

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return DTYPES[self.dtype].bits // 8

    def __str__(self) -> str:
        """Return it as messages have it: ``float32 (3, 4)``."""
        return f"{self.dtype} {self.shape}"


class Contents(Protocol):
    """The contents of one tensor, in native byte order and row-major, from the first byte to the last."""

    def take(self, nbytes: int) -> Bytes:
        """Return the next ``nbytes``, valid until the next call; fewer if the file ends too early."""


class Tensor(Protocol):
    """A tensor of an open checkpoint."""

    @property
    def spec(self) -> Spec:
        """The tensor's dtype and shape."""

    def open(self) -> contextlib.AbstractContextManager[Contents]:
        """Open the tensor for reading."""


@dataclass(slots=True)
class Checkpoint:
    """An open input: one file, or the files of one model.

    Attributes:
        kind: The format in words, for messages.
        metadata: The entries of a safetensors header beside the tensors.
        ties: The name under which a tensor is stored, for tensors that are stored under another name.
        others: The names of entries that are no tensors, which are left out.
        shards: The file of each tensor of a folder.
        config: The parsed ``config.json`` of a folder.
        coded: The names of tensors that hold codes of a quantized model.

    """

    path: Path
    kind: str
    tensors: dict[str, Tensor] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)
    ties: dict[str, str] = field(default_factory=dict)
    others: list[str] = field(default_factory=list)
    shards: dict[str, str] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    coded: set[str] = field(default_factory=set)


@contextlib.contextmanager
def reading(path: Path, kind: str) -> Iterator[None]:
    """Turn any error of reading a file into one sentence: neither the bytes nor the library that reads them is ours."""
    try:
        yield
    except CheckpointError:
        raise
    except OSError as error:
        raise CheckpointError.unreadable(path, error) from None
    except Exception as error:  # noqa: BLE001 - libraries do not document what they raise for damaged bytes
        raise CheckpointError.foreign(path, kind, error) from None


if sys.platform != "win32":
    import resource


class OpenFile:
    """A regular file that stays open until ``close``, so that the bytes read are those checked, even if it is renamed.

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
        """Return bytes from a position on; fewer if the file ends."""
        self.file.seek(start)
        return self.file.read(nbytes)

    def read_into(self, start: int, block: Bytes) -> int:
        """Copy bytes into a block and return their number."""
        if hasattr(os, "preadv"):
            return os.preadv(self.file.fileno(), [block.data], start)
        self.file.seek(start)
        return self.file.readinto(block.data)  # type: ignore[attr-defined,no-any-return]  # typeshed: not every file

    def view(self, start: int, stop: int, *, end: int) -> Bytes:
        """Return bytes, tell the system that those up to ``end`` come next, and let it evict those of earlier views.

        Returns fewer bytes than asked for if the file has become shorter, because touching missing pages ends the
        process.
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
        """Evict the pages of views up to ``stop``, and drop the map: a checkpoint may have any number of files.

        The map holds a descriptor of its own, which is closed with the last view.
        """
        self._advise("MADV_DONTNEED", self._resident, stop)
        self._map, self._bytes = None, np.empty(0, np.uint8)

    def _advise(self, advice: str, start: int, stop: int) -> None:
        if stop > start and self._map is not None and hasattr(mmap, advice):  # Windows has none
            self._map.madvise(getattr(mmap, advice), start, stop - start)

    def close(self) -> None:
        """Close the file. The map is closed with its last view."""
        self.file.close()


@contextlib.contextmanager
def many_files() -> Iterator[None]:
    """Raise the process's limit on open files to what the system allows: shards of all inputs are open together."""
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
    """A tensor in consecutive bytes of a file, stored row by row."""

    spec: Spec
    file: OpenFile
    start: int

    @contextlib.contextmanager
    def open(self) -> Iterator[MappedContents]:
        """Open the tensor for reading."""
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
    """The bytes of a file between two positions."""

    def __init__(self, file: OpenFile, start: int, stop: int) -> None:
        """Start at the first position."""
        self._file, self._position, self._stop = file, start, stop

    def take(self, nbytes: int) -> Bytes:
        """Return a view of the next bytes of the file."""
        start = self._position
        self._position = min(start + nbytes, self._stop)
        return self._file.view(start, self._position, end=self._stop)


@contextlib.contextmanager
def spooled(contents: Contents, nbytes: int, directory: Path, *, path: Path, name: str) -> Iterator[Bytes]:
    """Copy contents, at least one byte, to a temporary file without a name, and yield its mapped bytes.

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
    """Put the cells of a grid together to one tensor in a temporary file, and yield its mapped bytes.

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
            if hasattr(mmap, "MADV_DONTNEED"):  # written pages are the file's, and need not stay in memory
                memory.madvise(mmap.MADV_DONTNEED)
        yield np.frombuffer(memory, np.uint8)


@dataclass(frozen=True, slots=True)
class Cell:
    """A part of another tensor, and the offsets at which it begins there."""

    offsets: tuple[int, ...]
    tensor: Tensor


class ReorderedContents:
    """An array of any strides and byte order, read row by row in native byte order."""

    def __init__(
        self, array: npt.NDArray[Any], *steps: Callable[..., object], before: Callable[[], object] = lambda: None
    ) -> None:
        """Start at the beginning of the array.

        ``steps``: functions of NumPy that are applied to each block, such as ``np.conjugate``. ``before``: called
        before each block.
        """
        self._before, self._dtype, self._steps, self._next = before, array.dtype.newbyteorder("="), steps, 0
        flags, keep = ["external_loop", "buffered", "ranged"], [["readonly"]]
        self._elements = np.nditer(array, flags, keep, [self._dtype], order="C", casting="equiv", buffersize=_CHUNK)  # type: ignore[call-overload]  # typeshed: lists of literals only

    def take(self, nbytes: int) -> Bytes:
        """Copy the next bytes into a new block."""
        self._before()
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
