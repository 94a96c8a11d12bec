"""safetensors files: a length, a header in JSON, and the tensors' bytes.

The header is checked here, by the rules of the safetensors library and a little more. That library opens a file by its
name, so the file that it checks need not be the one that is read here. Ranges may not overlap, leave holes or exceed
the file. Shapes must fit them, and no name may occur twice.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn

from treefold.averaging.tensors import Checkpoint, OpenFile, Span, Spec, Tensor, reading
from treefold.dtypes import DTYPES
from treefold.errors import CheckpointError

KIND = "safetensors"
_LENGTH_BYTES = 8
_METADATA = "__metadata__"
_NAMES = {row.safetensors: row.name for row in DTYPES.values() if row.safetensors}
#: Of the format; the library allows no longer header.
_MOST_HEADER_BYTES = 100_000_000
#: Dtypes of the format that are not averaged, by the bits of an element.
_OTHER_BITS = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}
_MOST_LENGTH = (1 << 63) - 1


def read_safetensors(file: OpenFile) -> Checkpoint:
    """Read the header of an open file.

    Raises:
        CheckpointError: it is no safetensors file, or says what is not so.

    """
    with reading(file.path, KIND):
        header, data = _read_header(file)
        metadata = header.pop(_METADATA, None)
        if metadata is not None and not _is_of_text(metadata):
            raise CheckpointError.damaged(file.path, "metadata")
        end = 0
        tensors: dict[str, Tensor] = {}
        # In the order of the data, so that a file is read from its beginning to its end.
        for name in sorted(header, key=lambda name: _range_of(file.path, name, header[name])):
            entry = header[name]
            if not is_text(name):
                raise CheckpointError.damaged(file.path, "tensor shape", name)
            if entry.first != end or (entry.last - entry.first) * 8 != entry.bits:
                raise CheckpointError.damaged(file.path, "range", name)
            if entry.spec is None:
                raise CheckpointError.dtype(file.path, name, entry.code)
            tensors[name] = Span(entry.spec, file, data + entry.first)
            end = entry.last
        if data + end != file.nbytes:
            raise CheckpointError.damaged(file.path, "size", file.nbytes, data + end)
    return Checkpoint(file.path, KIND, tensors, metadata or {})


class _HeaderEntry(NamedTuple):
    """A tensor of a header: its range of bytes, dtype and shape; or None and the bits of a dtype without averages."""

    first: int
    last: int
    code: str
    spec: Spec | None
    bits: int


def _read_header(file: OpenFile) -> tuple[dict[str, Any], int]:
    """Return the header and the position at which the data begins."""
    length = int.from_bytes(file.read(0, min(_LENGTH_BYTES, file.nbytes)), "little")
    data = _LENGTH_BYTES + length
    if file.nbytes < _LENGTH_BYTES or data > file.nbytes or length > _MOST_HEADER_BYTES:
        raise CheckpointError.damaged(file.path, "header length", length)
    text = file.read(_LENGTH_BYTES, length)
    if not text.startswith(b"{"):
        raise CheckpointError.damaged(file.path, "no header")

    specs: dict[tuple[str, tuple[int, ...]], Spec] = {}

    def read_object(pairs: list[tuple[str, Any]]) -> Any:
        found = dict(pairs)
        if len(found) != len(pairs):
            names = [name for name, _ in pairs]
            raise CheckpointError.damaged(file.path, "entry twice", next(n for n in names if names.count(n) > 1))
        # At once, because a header of many tensors is large while it is a tree of dictionaries.
        return _entry_of(found, specs) if "data_offsets" in found else found

    def no_number(text: str) -> NoReturn:
        raise CheckpointError.damaged(file.path, "no number", text)

    header: dict[str, Any] = json.loads(text.decode(), object_pairs_hook=read_object, parse_constant=no_number)
    return header, data


def _is_of_text(metadata: object) -> bool:
    return isinstance(metadata, dict) and all(isinstance(text, str) and is_text(text) for text in metadata.values())


def is_text(name: str) -> bool:
    """Tell whether a string is Unicode text, which half of a surrogate pair is not."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _range_of(path: Path, name: str, entry: Any) -> tuple[int, int]:
    if isinstance(entry, _HeaderEntry):
        return entry.first, entry.last
    if not isinstance(entry, dict) or not isinstance(entry.get("data_offsets"), list):
        raise CheckpointError.damaged(path, "range", name)
    if isinstance(entry.get("dtype"), str) and entry["dtype"] not in _NAMES and entry["dtype"] not in _OTHER_BITS:
        raise CheckpointError.damaged(path, "tensor dtype", entry["dtype"], name)
    raise CheckpointError.damaged(path, "tensor shape", name)


def _entry_of(found: dict[str, Any], specs: dict[tuple[str, tuple[int, ...]], Spec]) -> _HeaderEntry | dict[str, Any]:
    """Return a compact entry, or the parsed one unchanged if it is wrong. ``specs``: a cache of dtypes and shapes."""
    code, shape, offsets = found.get("dtype"), found.get("shape"), found["data_offsets"]
    if not isinstance(shape, list) or not isinstance(offsets, list) or len(offsets) != 2:  # noqa: PLR2004 - a range
        return found
    if not isinstance(code, str) or not all(map(_is_length, shape)) or not all(map(_is_length, offsets)):
        return found
    first, last = offsets
    key = code, tuple(shape)
    if key in specs:
        spec = specs[key]
        return _HeaderEntry(first, last, code, spec, spec.nbytes * 8)
    size = 1  # No partial product may overflow, even if a later length is 0.
    for length in shape:
        size *= length
        if size > _MOST_LENGTH:
            return found
    if code in _NAMES:
        specs[key] = Spec(_NAMES[code], key[1])
        return _HeaderEntry(first, last, code, specs[key], specs[key].nbytes * 8)
    return _HeaderEntry(first, last, code, None, size * _OTHER_BITS[code]) if code in _OTHER_BITS else found


def _is_length(number: object) -> bool:
    return type(number) is int and 0 <= number <= _MOST_LENGTH


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


class SafetensorsWriter:
    """Writes the header at once, then the tensors in turn."""

    def __init__(self, path: Path, file: BinaryIO, specs: Mapping[str, Spec], metadata: Mapping[str, str]) -> None:
        """Write the header; the tensors must follow in the order of ``specs``."""
        self._file = file
        check_held(path, specs)
        # Entry by entry, because a header of many tensors is large while it is a tree of dictionaries.
        entries = [f"{_json(_METADATA)}:{_json(dict(metadata))}"] if metadata else []
        end = 0
        for name, spec in specs.items():
            start, end = end, end + spec.nbytes
            code, shape = DTYPES[spec.dtype].safetensors, ",".join(map(str, spec.shape))
            entries.append(f'{_json(name)}:{{"dtype":"{code}","shape":[{shape}],"data_offsets":[{start},{end}]}}')
        text = f"{{{','.join(entries)}}}".encode()
        text += b" " * (-len(text) % _LENGTH_BYTES)  # so that the data is aligned
        file.write(len(text).to_bytes(_LENGTH_BYTES, "little") + text)

    @contextlib.contextmanager
    def tensor(self, name: str) -> Iterator[BinaryIO]:  # noqa: ARG002 - the header says what comes when
        """Yield the file, for the contents of the next tensor."""
        yield self._file

    def close(self) -> None:
        """Do nothing: the header, which describes the tensors, is written before them."""


def check_held(path: Path, specs: Mapping[str, Spec]) -> None:
    """Refuse tensors that a safetensors file cannot hold.

    Raises:
        CheckpointError: complex128, or a tensor named as the metadata is.

    """
    for name, spec in specs.items():
        if name == _METADATA:
            raise CheckpointError.reserved(path, name, ".npz")
        if DTYPES[spec.dtype].safetensors is None:
            raise CheckpointError.not_held(path, name, spec.dtype, ".npz")
