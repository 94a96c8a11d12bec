"""PyTorch's files, written without PyTorch: a zip archive of one record per tensor, and a pickle that names them."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO

from treefold.averaging.archive import ArchiveRecord, ArchiveWriter
from treefold.averaging.tensors import Spec
from treefold.dtypes import DTYPES

_ROOT = "archive"


class TorchWriter:
    """Writes a dictionary of tensors as ``torch.save`` does: ``torch.load`` reads it, mapped or not."""

    def __init__(self, path: Path, file: BinaryIO, specs: Mapping[str, Spec], ties: Mapping[str, str]) -> None:
        """Write the pickle; the tensors must follow. ``ties``: names that share the memory of others."""
        self.path = path
        self._specs, self._keys = specs, {name: str(number) for number, name in enumerate(specs)}
        self._archive = ArchiveWriter(file)
        pickled = _pickle({**specs, **{name: specs[kept] for name, kept in ties.items()}}, self._keys, ties)
        for name, contents in (("data.pkl", pickled), ("byteorder", b"little"), ("version", b"3\n")):
            with self._archive.record(f"{_ROOT}/{name}", len(contents)) as record:
                record.write(contents)

    def tensor(self, name: str) -> AbstractContextManager[ArchiveRecord]:
        """Give what takes the tensor's contents."""
        return self._archive.record(f"{_ROOT}/data/{self._keys[name]}", self._specs[name].nbytes)

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
