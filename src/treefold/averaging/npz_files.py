"""npz files: a zip archive of npy files, one per array, compressed or not."""

from __future__ import annotations

import contextlib
import io
import math
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np

from treefold.averaging.tensors import Bytes, Checkpoint, Contents, OpenFile, ReorderedContents, Spec, reading, spooled
from treefold.dtypes import DTYPES
from treefold.errors import CheckpointError, CheckpointFormatError

KIND = "npz"
_SUFFIX = ".npy"
_LENGTH_BYTES = {(1, 0): 2, (2, 0): 4}
_READ_HEADER = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
_MOST_HEADER_BYTES = 1 << 16
#: The methods that NumPy writes. Python unpacks others, too, but not block by block.
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
#: A file is refused if it unpacks to more than this and to more than 100 times its bytes: no model packs so well.
_MOST_PACKED_BYTES, _MOST_RATIO = 64 << 20, 100
_MOST_DIMENSIONS = 64  # of NumPy's arrays
_MOST_LENGTH = (1 << 63) - 1
_MOST_NAME_BYTES = (1 << 16) - 1  # in a zip archive


def read_npz(file: OpenFile, scratch: Path) -> Checkpoint:
    """Read the headers of all arrays. ``scratch``: a directory in which arrays stored by columns are put in order.

    Raises:
        CheckpointError: it is no npz file, or would unpack to far more than it is.

    """
    checkpoint = Checkpoint(file.path, KIND)
    with reading(file.path, KIND):
        archive = zipfile.ZipFile(file.file)
        packed = 0
        for info in archive.infolist():
            name, entry = _read_entry(file.path, archive, info)
            if name in checkpoint.tensors:
                raise CheckpointError.damaged(file.path, "array twice", name)
            if info.compress_type != zipfile.ZIP_STORED:
                packed += info.file_size
            spec = Spec(entry.dtype.name, entry.shape)
            checkpoint.tensors[name] = _PackedArray(spec, name, entry, archive, file.path, scratch)
        if packed > max(_MOST_PACKED_BYTES, _MOST_RATIO * file.nbytes):
            raise CheckpointFormatError.bomb(file.path, file.nbytes, packed)
    return checkpoint


def _read_entry(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> tuple[str, _StoredArray]:
    if not info.filename.endswith(_SUFFIX):
        raise CheckpointError.damaged(path, "member", info.filename)
    name = info.filename.removesuffix(_SUFFIX)
    if info.compress_type not in _METHODS:
        raise CheckpointError.damaged(path, "packing", name, info.compress_type)
    with archive.open(info) as member:
        entry = _StoredArray(info, *_read_header(path, member))
        start = member.tell()
    if not all(0 <= length <= _MOST_LENGTH for length in entry.shape):
        raise CheckpointError.damaged(path, "shape", name, entry.shape)
    if entry.dtype.hasobject:
        raise CheckpointError(
            f"{str(path)!r} holds Python objects at {name!r}, and to read those is to run what the file says. "
            f"Save arrays of numbers."
        )
    if entry.dtype.name not in DTYPES:
        raise CheckpointError.dtype(path, name, str(entry.dtype))
    nbytes = Spec(entry.dtype.name, entry.shape).nbytes
    if info.file_size < start + nbytes:
        raise CheckpointError.truncated(path, name)
    if info.file_size > start + nbytes:
        raise CheckpointError.damaged(path, "more bytes", name)
    return name, entry


@dataclass(frozen=True, slots=True)
class _PackedArray:
    """An array of an archive."""

    spec: Spec
    name: str
    entry: _StoredArray
    archive: zipfile.ZipFile
    path: Path
    scratch: Path

    @contextlib.contextmanager
    def open(self) -> Iterator[Contents]:
        """Open the array for reading; if it is stored by columns, unpack it first."""
        with contextlib.ExitStack() as opened:
            with reading(self.path, KIND):
                member = opened.enter_context(self.archive.open(self.entry.info))
                _read_header(self.path, member)
            contents = _MemberContents(self.path, member, self.entry.dtype)
            if self.entry.is_by_columns and self.spec.nbytes:
                spool = spooled(contents, self.spec.nbytes, self.scratch, path=self.path, name=self.name)
                stored = opened.enter_context(spool).view(self.spec.numpy_dtype)
                yield ReorderedContents(stored.reshape(self.spec.shape, order="F"))
            else:
                yield contents


@dataclass(frozen=True, slots=True)
class _StoredArray:
    """The place of an array, and the form in which it is stored."""

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
    """The contents of an array, read and perhaps decompressed into a buffer."""

    def __init__(self, path: Path, member: IO[bytes], dtype: np.dtype[Any]) -> None:
        """Start after the header, which has been read."""
        self._path, self._member, self._dtype, self._buffer = path, member, dtype, np.empty(0, np.uint8)

    def take(self, nbytes: int) -> Bytes:
        """Read the next bytes into the buffer."""
        if self._buffer.size < nbytes:
            self._buffer = np.empty(nbytes, np.uint8)
        done = 0
        with reading(self._path, KIND):
            while done < nbytes and (count := self._member.readinto(self._buffer.data[done:nbytes])):  # type: ignore[attr-defined] # typeshed: not every IO[bytes] has it
                done += count
        if not self._dtype.isnative:
            whole = done - done % self._dtype.itemsize
            self._buffer[:whole].view(self._dtype.newbyteorder("=")).byteswap(inplace=True)
        return self._buffer[:done]


class NpzWriter:
    """Writes arrays one after the other, uncompressed, as ``numpy.savez`` does."""

    def __init__(self, file: BinaryIO, specs: Mapping[str, Spec]) -> None:
        """Start an archive."""
        self._specs = specs
        self._archive = zipfile.ZipFile(file, "w", zipfile.ZIP_STORED)

    @staticmethod
    def check(path: Path, specs: Mapping[str, Spec]) -> None:
        """Refuse tensors that an npz file cannot hold.

        Raises:
            CheckpointError: a dtype or shape that NumPy does not have, a name that zip archives do not hold.

        """
        for name, spec in specs.items():
            if spec.numpy_dtype.isbuiltin != 1:  # not NumPy's own: it would write nameless bytes
                raise CheckpointError.not_held(path, name, spec.dtype, ".safetensors")
            if not _is_array(spec):
                raise CheckpointError.not_held(path, name, f"the shape of {spec}", ".safetensors")
            if "\0" in name or len((name + _SUFFIX).encode()) > _MOST_NAME_BYTES:
                raise CheckpointError.reserved(path, name, ".safetensors")

    @contextlib.contextmanager
    def tensor(self, name: str) -> Iterator[IO[bytes]]:
        """Write the array's header and yield the file for its contents."""
        spec = self._specs[name]
        # A ZipInfo, because a name alone would be given the time of day: same arrays, same file.
        with self._archive.open(zipfile.ZipInfo(name + _SUFFIX), "w", force_zip64=True) as member:
            description = np.lib.format.dtype_to_descr(spec.numpy_dtype)
            header = {"descr": description, "fortran_order": False, "shape": spec.shape}
            np.lib.format.write_array_header_1_0(member, header)
            yield member

    def close(self) -> None:
        """Write the archive's directory."""
        self._archive.close()


def _is_array(spec: Spec) -> bool:
    """Tell whether NumPy has arrays of this shape. Lengths count even if there are no elements."""
    size = math.prod(length or 1 for length in spec.shape)
    return len(spec.shape) <= _MOST_DIMENSIONS and size * spec.itemsize <= _MOST_LENGTH
