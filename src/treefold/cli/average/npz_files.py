"""npz files: a zip archive of npy files, one per array, compressed or not."""

from __future__ import annotations

import contextlib
import io
import math
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO, Self

import numpy as np

from treefold.cli.average.checkpoint import Bytes, Contents, Spec, reading
from treefold.cli.average.reordered import ReorderedContents, spooled
from treefold.dtypes import DTYPES
from treefold.errors import CheckpointError

_SUFFIX = ".npy"
_LENGTH_BYTES = {(1, 0): 2, (2, 0): 4}
_READ_HEADER = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
_MOST_HEADER_BYTES = 1 << 16
#: What NumPy writes. Python unpacks others, too, but block by block only these.
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_MOST_DIMENSIONS = 64  # of NumPy's arrays
_MOST_LENGTH = (1 << 63) - 1
_MOST_NAME_BYTES = (1 << 16) - 1  # in a zip archive


class NpzCheckpoint:
    """An open npz file. Arrays by columns are put in order in ``scratch``, a directory."""

    def __init__(self, path: Path, scratch: Path) -> None:
        """Read the headers of all arrays."""
        self.path = path
        self.metadata: dict[str, str] = {}
        self.specs: dict[str, Spec] = {}
        self._scratch = scratch
        self._entries: dict[str, _Entry] = {}
        with reading(path, "npz"):
            self._archive = zipfile.ZipFile(path)
            try:
                for info in self._archive.infolist():
                    self._add(info)
            except BaseException:
                self._archive.close()
                raise

    def _add(self, info: zipfile.ZipInfo) -> None:
        if not info.filename.endswith(_SUFFIX):
            raise CheckpointError.damaged(self.path, "member", info.filename)
        name = info.filename.removesuffix(_SUFFIX)
        if name in self.specs:
            raise CheckpointError.damaged(self.path, "array twice", name)
        if info.compress_type not in _METHODS:
            raise CheckpointError.damaged(self.path, "packing", name, info.compress_type)
        with self._archive.open(info) as member:
            entry = _Entry(info, *_read_header(self.path, member))
            start = member.tell()
        if not all(0 <= length <= _MOST_LENGTH for length in entry.shape):
            raise CheckpointError.damaged(self.path, "shape", name, entry.shape)
        if entry.dtype.hasobject:
            raise CheckpointError.pickled_objects(self.path, name)
        if entry.dtype.name not in DTYPES:
            raise CheckpointError.dtype(self.path, name, str(entry.dtype))
        spec = Spec(entry.dtype.name, entry.shape)
        if info.file_size < start + spec.nbytes:
            raise CheckpointError.truncated(self.path, name)
        if info.file_size > start + spec.nbytes:
            raise CheckpointError.damaged(self.path, "more bytes", name)
        self.specs[name], self._entries[name] = spec, entry

    @contextlib.contextmanager
    def tensor(self, name: str) -> Iterator[Contents]:
        """Open an array; one that is stored by columns is unpacked first."""
        spec, entry = self.specs[name], self._entries[name]
        with contextlib.ExitStack() as opened:
            with reading(self.path, "npz"):
                member = opened.enter_context(self._archive.open(entry.info))
                _read_header(self.path, member)
            contents = _MemberContents(self.path, member, entry.dtype)
            if entry.is_by_columns and spec.nbytes:
                spool = spooled(contents, spec.nbytes, self._scratch, path=self.path, name=name)
                stored = opened.enter_context(spool).view(spec.numpy_dtype)
                yield ReorderedContents(stored.reshape(spec.shape, order="F"))
            else:
                yield contents

    def close(self) -> None:
        """Close the file."""
        self._archive.close()


@dataclass(frozen=True, slots=True)
class _Entry:
    """Where an array is, and how it is stored."""

    info: zipfile.ZipInfo
    shape: tuple[int, ...]
    is_by_columns: bool
    dtype: np.dtype[Any]


def _read_header(path: Path, member: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(member)
    if version not in _READ_HEADER:
        raise CheckpointError.damaged(path, "version", version)
    length = member.read(_LENGTH_BYTES[version])
    nbytes = int.from_bytes(length, "little")
    if nbytes > _MOST_HEADER_BYTES:  # NumPy would read all of it before it refuses
        raise CheckpointError.damaged(path, "header", nbytes)
    shape, is_by_columns, dtype = _READ_HEADER[version](io.BytesIO(length + member.read(nbytes)))
    shape = tuple(map(int, shape))  # True is a length to NumPy
    return shape, is_by_columns and len(shape) > 1, dtype


class _MemberContents:
    """An array that is read, and perhaps decompressed, into a buffer of its own."""

    def __init__(self, path: Path, member: IO[bytes], dtype: np.dtype[Any]) -> None:
        """Start behind the header, which was read."""
        self._path, self._member, self._dtype, self._buffer = path, member, dtype, np.empty(0, np.uint8)

    def take(self, nbytes: int) -> Bytes:
        """Read into the buffer."""
        if self._buffer.size < nbytes:
            self._buffer = np.empty(nbytes, np.uint8)
        done = 0
        with reading(self._path, "npz"):
            while done < nbytes and (count := self._member.readinto(self._buffer.data[done:nbytes])):  # type: ignore[attr-defined] # typeshed: not every IO[bytes] has it
                done += count
        if not self._dtype.isnative:
            whole = done - done % self._dtype.itemsize
            self._buffer[:whole].view(self._dtype.newbyteorder("=")).byteswap(inplace=True)
        return self._buffer[:done]


class NpzWriter:
    """Writes arrays one behind the other, uncompressed, as ``numpy.savez`` does."""

    def __init__(self, path: Path, file: BinaryIO, specs: Mapping[str, Spec]) -> None:
        """Start an archive."""
        for name, spec in specs.items():
            if spec.numpy_dtype.isbuiltin != 1:  # not NumPy's own: it would write nameless bytes
                raise CheckpointError.not_held(path, name, spec.dtype, ".safetensors")
            if not _is_array(spec):
                raise CheckpointError.not_held(path, name, f"the shape of {spec}", ".safetensors")
            if "\0" in name or len((name + _SUFFIX).encode()) > _MOST_NAME_BYTES:
                raise CheckpointError.reserved(path, name, ".safetensors")
        self._specs = specs
        self._archive = zipfile.ZipFile(file, "w", zipfile.ZIP_STORED)

    @contextlib.contextmanager
    def tensor(self, name: str) -> Iterator[IO[bytes]]:
        """Write the array's header and give what takes its contents."""
        spec = self._specs[name]
        # A ZipInfo, because a name alone would be given the time of day: same arrays, same file.
        with self._archive.open(zipfile.ZipInfo(name + _SUFFIX), "w", force_zip64=True) as member:
            description = np.lib.format.dtype_to_descr(spec.numpy_dtype)
            header = {"descr": description, "fortran_order": False, "shape": spec.shape}
            np.lib.format.write_array_header_1_0(member, header)
            yield member

    def __enter__(self) -> Self:
        """Return the writer."""
        return self

    def __exit__(self, kind: object, *_error: object) -> None:
        """Write the archive's directory; after a failure that cannot be, and matters to nobody."""
        with contextlib.nullcontext() if kind is None else contextlib.suppress(OSError, ValueError):
            self._archive.close()


def _is_array(spec: Spec) -> bool:
    """Tell whether NumPy has arrays of a shape: lengths count even where there are no elements."""
    size = math.prod(length or 1 for length in spec.shape)
    return len(spec.shape) <= _MOST_DIMENSIONS and size * spec.numpy_dtype.itemsize <= _MOST_LENGTH
