"""safetensors files: a length, a header in JSON, and the tensors' bytes.

The library reads the header first and refuses what is not right: ranges that overlap, leave holes or reach beyond the
file, shapes that do not fit, a header too large. What it does not see is two entries of one name and one range.
"""

from __future__ import annotations

import collections
import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Self

import safetensors

from treefold.cli.average.checkpoint import Contents, Spec, reading
from treefold.cli.average.mapped import MappedContents, MappedFile
from treefold.dtypes import DTYPES
from treefold.errors import CheckpointError

_LENGTH_BYTES = 8
_METADATA = "__metadata__"
_NAMES = {row.safetensors: row.name for row in DTYPES.values()}


class SafetensorsCheckpoint:
    """An open safetensors file."""

    def __init__(self, path: Path) -> None:
        """Read the header."""
        self.path = path
        with reading(path, "safetensors"):
            self._file = path.open("rb")
        try:
            with reading(path, "safetensors"):
                header = self._read_header()
                self.metadata: dict[str, str] = header.pop(_METADATA, None) or {}
                # In the order of the data, so that a file is read from its beginning to its end.
                entries = sorted(header.items(), key=lambda item: item[1]["data_offsets"])
                self.specs = {name: self._spec(name, entry) for name, entry in entries}
                self._ranges = {name: [self._data + at for at in entry["data_offsets"]] for name, entry in entries}
                self._mapped = MappedFile(self._file)
        except BaseException:
            self._file.close()
            raise

    def _read_header(self) -> dict[str, Any]:
        try:
            with safetensors.safe_open(self.path, framework="numpy"):
                pass
        except safetensors.SafetensorError as error:
            reason = str(error).removeprefix("Error while deserializing header: ")
            raise CheckpointError.malformed(self.path, "safetensors", reason) from None
        length = int.from_bytes(self._file.read(_LENGTH_BYTES), "little")
        self._data = _LENGTH_BYTES + length
        header: dict[str, Any] = json.loads(self._file.read(length), object_pairs_hook=self._without_duplicates)
        return header

    def _without_duplicates(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            twice, _ = collections.Counter(name for name, _ in pairs).most_common(1)[0]
            raise CheckpointError.damaged(self.path, "entry twice", twice)
        return found

    def _spec(self, name: str, entry: dict[str, Any]) -> Spec:
        dtype = _NAMES.get(entry["dtype"])
        if dtype is None:
            raise CheckpointError.dtype(self.path, name, entry["dtype"])
        return Spec(dtype, tuple(entry["shape"]))

    @contextlib.contextmanager
    def tensor(self, name: str) -> Iterator[Contents]:
        """Open a tensor."""
        yield MappedContents(self._mapped, *self._ranges[name])

    def close(self) -> None:
        """Close the file; the map goes with its last view."""
        self._file.close()


class SafetensorsWriter:
    """Writes the header at once and the tensors as they come."""

    def __init__(self, path: Path, file: BinaryIO, specs: Mapping[str, Spec], metadata: Mapping[str, str]) -> None:
        """Write the header; the tensors must follow in the order of ``specs``."""
        self._file = file
        header: dict[str, Any] = {_METADATA: dict(metadata)} if metadata else {}
        end = 0
        for name, spec in specs.items():
            if name == _METADATA:
                raise CheckpointError.reserved(path, name, ".npz")
            code = DTYPES[spec.dtype].safetensors
            if code is None:
                raise CheckpointError.not_held(path, name, spec.dtype, ".npz")
            start, end = end, end + spec.nbytes
            header[name] = {"dtype": code, "shape": spec.shape, "data_offsets": (start, end)}
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        text += b" " * (-len(text) % _LENGTH_BYTES)  # so that the data is aligned
        file.write(len(text).to_bytes(_LENGTH_BYTES, "little") + text)

    @contextlib.contextmanager
    def tensor(self, name: str) -> Iterator[BinaryIO]:  # noqa: ARG002 - the header says what comes when
        """Give the file itself."""
        yield self._file

    def __enter__(self) -> Self:
        """Return the writer."""
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing: all that describes the tensors stands before them."""
