"""PyTorch's files, written without PyTorch: a zip archive of one record per tensor, and a pickle that names them."""

from __future__ import annotations

import contextlib
import io
import struct
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, BinaryIO

from treefold.averaging.tensors import Spec
from treefold.dtypes import DTYPES

_ROOT = "archive"
_ALIGNMENT = 64
_LOCAL_HEADER_BYTES, _ZIP64_BYTES, _FIELD_BYTES = 30, 20, 4
_PADDING_ID = 0x4246  # "FB", as PyTorch pads


class TorchWriter:
    """Writes a dictionary of tensors as ``torch.save`` does: ``torch.load`` reads it, mapped or not."""

    def __init__(self, path: Path, file: BinaryIO, specs: Mapping[str, Spec], ties: Mapping[str, str]) -> None:
        """Write the pickle; the tensors must follow. ``ties``: names that share the memory of others."""
        self.path, self._file = path, file
        self._keys = {name: str(number) for number, name in enumerate(specs)}
        self._archive = zipfile.ZipFile(file, "w", zipfile.ZIP_STORED)
        pickled = _pickle({**specs, **{name: specs[kept] for name, kept in ties.items()}}, self._keys, ties)
        for name, contents in (("data.pkl", pickled), ("byteorder", b"little"), ("version", b"3\n")):
            with self._record(name) as record:
                record.write(contents)

    @contextlib.contextmanager
    def tensor(self, name: str) -> Iterator[IO[bytes]]:
        """Give what takes the tensor's contents."""
        with self._record(f"data/{self._keys[name]}") as record:
            yield record

    def _record(self, name: str) -> IO[bytes]:
        return self._archive.open(self._info(name), "w", force_zip64=True)

    def _info(self, name: str) -> zipfile.ZipInfo:
        # A ZipInfo, because a name alone would be given the time of day: same tensors, same file.
        info = zipfile.ZipInfo(f"{_ROOT}/{name}")
        begin = self._file.tell() + _LOCAL_HEADER_BYTES + len(info.filename) + _FIELD_BYTES + _ZIP64_BYTES
        padding = -begin % _ALIGNMENT  # so that tensors are aligned in a map of the file
        info.extra = struct.pack("<2H", _PADDING_ID, padding) + b"Z" * padding
        return info

    def close(self) -> None:
        """Write the archive's directory."""
        self._archive.close()


def _pickle(specs: Mapping[str, Spec], keys: Mapping[str, str], ties: Mapping[str, str]) -> bytes:
    """Return the pickle of protocol 2 of a dictionary of tensors."""
    out = io.BytesIO()
    out.write(b"\x80\x02}(")
    for name, spec in specs.items():
        row, key = DTYPES[spec.dtype], keys[ties.get(name, name)]
        is_typed = row.torch is not None
        size = spec.nbytes // (row.bits // 8)
        strides, step = [], 1
        for length in reversed(spec.shape):
            strides.append(step)
            step *= max(length, 1)
        out.write(_text(name))
        out.write(b"ctorch._utils\n_rebuild_tensor_v%d\n((" % (2 if is_typed else 3))
        kind = b"torch\n%sStorage" % row.torch.encode() if row.torch else b"torch.storage\nUntypedStorage"
        out.write(_text("storage") + b"c" + kind + b"\n" + _text(key) + _text("cpu"))
        out.write(_number(size if is_typed else spec.nbytes) + b"tQ" + _number(0))
        out.write(_row(spec.shape) + _row(strides[::-1]) + b"\x89ccollections\nOrderedDict\n)R")
        out.write(b"tR" if is_typed else b"ctorch\n%s\ntR" % spec.dtype.encode())
    out.write(b"u.")
    return out.getvalue()


def _text(text: str) -> bytes:
    encoded = text.encode()
    return b"X" + len(encoded).to_bytes(4, "little") + encoded


def _number(number: int) -> bytes:
    width = number.bit_length() // 8 + 1
    return b"\x8a" + bytes([width]) + number.to_bytes(width, "little")


def _row(numbers: Iterable[int]) -> bytes:
    return b"(" + b"".join(map(_number, numbers)) + b"t"
