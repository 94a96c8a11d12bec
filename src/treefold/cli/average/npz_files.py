"""npz files: a zip archive of npy files, one per array, compressed or not."""

from __future__ import annotations

import contextlib
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, BinaryIO, NoReturn, Self

import numpy as np

from treefold.cli.average.checkpoint import Bytes, Contents, MemoryContents, Spec, is_known
from treefold.cli.average.errors import CheckpointError

_SUFFIX = ".npy"
_READ_HEADER = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
_BROKEN = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, ValueError, RuntimeError)


class NpzCheckpoint:
    """An open npz file."""

    def __init__(self, path: Path) -> None:
        """Read the headers of all arrays."""
        self.path = path
        self.metadata: dict[str, str] = {}
        try:
            self._archive = zipfile.ZipFile(path)
        except zipfile.BadZipFile as error:
            self._refuse(error)
        self._dtypes: dict[str, np.dtype[Any]] = {}
        self._is_by_columns: dict[str, bool] = {}
        self.specs: dict[str, Spec] = {}
        try:
            for entry in self._archive.infolist():
                self._add(entry.filename)
        except BaseException:
            self._archive.close()
            raise

    def _refuse(self, reason: object) -> NoReturn:
        raise CheckpointError.malformed(self.path, "npz", str(reason).rstrip(".")) from None

    def _add(self, filename: str) -> None:
        if not filename.endswith(_SUFFIX):
            self._refuse(f"{filename!r} in it is no npy file")
        name = filename.removesuffix(_SUFFIX)
        if name in self.specs:
            self._refuse(f"it has {name!r} twice")
        try:
            with self._archive.open(filename) as member:
                shape, is_by_columns, dtype = _read_header(member)
        except _BROKEN as error:
            self._refuse(error)
        if any(length < 0 for length in shape):
            self._refuse(f"{name!r} in it has the shape {shape}")
        if dtype.hasobject:
            raise CheckpointError.pickled_objects(self.path, name)
        if not is_known(dtype.name):
            raise CheckpointError.dtype(self.path, name, str(dtype))
        self.specs[name] = Spec(dtype.name, shape)
        self._dtypes[name] = dtype
        self._is_by_columns[name] = is_by_columns and len(shape) > 1

    @contextlib.contextmanager
    def tensor(self, name: str) -> Iterator[Contents]:
        """Open an array; one that is stored by columns or in foreign byte order is read whole."""
        try:
            with self._archive.open(name + _SUFFIX) as member:
                _read_header(member)
                if self._is_by_columns[name] or not self._dtypes[name].isnative:
                    yield MemoryContents(self._read_whole(name, member))
                else:
                    yield _MemberContents(member)
        except CheckpointError:
            raise
        except _BROKEN as error:
            self._refuse(error)

    def _read_whole(self, name: str, member: IO[bytes]) -> Bytes:
        spec, order = self.specs[name], "F" if self._is_by_columns[name] else "C"
        contents = member.read()
        if len(contents) < spec.nbytes:
            raise CheckpointError.truncated(self.path, name)
        array = np.frombuffer(contents[: spec.nbytes], self._dtypes[name]).reshape(spec.shape, order=order)  # type: ignore[call-overload]
        return np.ascontiguousarray(array, spec.numpy_dtype).reshape(-1).view(np.uint8)

    def close(self) -> None:
        """Close the file."""
        self._archive.close()


def _read_header(member: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(member)
    if version not in _READ_HEADER:
        raise ValueError(version)
    return _READ_HEADER[version](member)


class _MemberContents:
    """An array that is read, and perhaps decompressed, into a buffer of its own."""

    def __init__(self, member: IO[bytes]) -> None:
        """Start behind the header, which was read."""
        self._member, self._buffer = member, np.empty(0, np.uint8)

    def take(self, nbytes: int) -> Bytes:
        """Read into the buffer."""
        if self._buffer.size < nbytes:
            self._buffer = np.empty(nbytes, np.uint8)
        done = 0
        while done < nbytes and (count := self._member.readinto(self._buffer.data[done:nbytes])):  # type: ignore[attr-defined] # typeshed: not every IO[bytes] has it
            done += count
        return self._buffer[:done]


class NpzWriter:
    """Writes arrays one behind the other, uncompressed, as ``numpy.savez`` does."""

    def __init__(self, path: Path, file: BinaryIO, specs: Mapping[str, Spec]) -> None:
        """Start an archive."""
        for name, spec in specs.items():
            if spec.numpy_dtype.isbuiltin != 1:  # not NumPy's own: it would write nameless bytes
                raise CheckpointError.not_held(path, name, spec.dtype, ".safetensors")
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
