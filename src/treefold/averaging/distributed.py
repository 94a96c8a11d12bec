"""Checkpoints of torch.distributed.checkpoint: pieces of tensors by rank, and a pickle that locates them.

PyTorch unpickles that file, which calls whatever the pickle names. Here it is read as data, and only the classes below
have a meaning.
"""

from __future__ import annotations

import contextlib
import functools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from treefold.averaging.pickles import Name, PickledCall, read_pickle
from treefold.averaging.tensors import Bytes, Cell, Checkpoint, Contents, OpenFile, Spec, Tensor, gathered, reading
from treefold.averaging.torch_files import MODELS, OF_A_RUN, TOP, lengths_of, read_single_tensor
from treefold.dtypes import DTYPES
from treefold.errors import CheckpointError, CheckpointFormatError

METADATA = ".metadata"
KIND = "torch.distributed.checkpoint"
_MODULE = "torch.distributed.checkpoint.metadata"
_METADATA, _TENSOR, _BYTES, _CHUNK, _INDEX, _PROPERTIES = (
    Name(_MODULE, f"{name}")
    for name in ("Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata", "MetadataIndex",
                 "TensorProperties")
)  # fmt: skip
_INFO = Name("torch.distributed.checkpoint.filesystem", "_StorageInfo")
_MOST_METADATA_BYTES = 1 << 30
#: What no name of a file beside another one has.
_UNSAFE = re.compile(r"[/\\:\x00]")


@dataclass(frozen=True, slots=True)
class _GriddedTensor:
    """A tensor in several cells. Cells that follow each other in memory are read in turn; others are put together."""

    spec: Spec
    name: str
    cells: tuple[Cell, ...]
    scratch: Path

    @contextlib.contextmanager
    def open(self) -> Iterator[Contents]:
        """Open the tensor for reading."""
        if all(cell.tensor.spec.shape[1:] == self.spec.shape[1:] for cell in self.cells):
            with contextlib.closing(_Chain([cell.tensor for cell in self.cells])) as chain:
                yield chain
        else:
            with gathered(self.cells, self.spec, self.scratch, name=self.name) as contents:
                yield _Memory(contents)


class _Chain:
    """The contents of several tensors, one after the other."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._waiting = iter(tensors)
        self._opened = contextlib.ExitStack()
        self._contents: Contents = _Memory(np.empty(0, np.uint8))
        self._left = 0
        self._buffer = np.empty(0, np.uint8)

    def take(self, nbytes: int) -> Bytes:
        if nbytes <= self._left:
            self._left -= nbytes
            return self._contents.take(nbytes)
        if self._buffer.size < nbytes:
            self._buffer = np.empty(nbytes, np.uint8)
        done = 0
        while done < nbytes:
            if not self._left and not self._open_next():
                break
            piece = self._contents.take(min(nbytes - done, self._left))
            if not piece.size:
                break
            self._buffer[done : done + piece.size] = piece
            done, self._left = done + piece.size, self._left - piece.size
        return self._buffer[:done]

    def _open_next(self) -> bool:
        self._opened.close()
        tensor = next(self._waiting, None)
        if tensor is not None:
            self._contents, self._left = self._opened.enter_context(tensor.open()), tensor.spec.nbytes
        return tensor is not None

    def close(self) -> None:
        self._opened.close()


class _Memory:
    """Contents that are already mapped."""

    def __init__(self, contents: Bytes) -> None:
        self._left = contents

    def take(self, nbytes: int) -> Bytes:
        taken, self._left = self._left[:nbytes], self._left[nbytes:]
        return taken


def read_distributed(
    folder: Path, scratch: Path, open_file: Callable[[Path], OpenFile], *, key: str | None = None
) -> Checkpoint:
    """Find the tensors of a checkpoint.

    Args:
        folder: The folder with ``.metadata``.
        scratch: A directory for tensors that must be put together.
        open_file: Opens a file, and closes it later.
        key: The part of the state that holds the model; None if there is only one.

    Raises:
        CheckpointError: it is not what PyTorch writes, or pieces overlap or are missing.

    """
    path = folder / METADATA
    with reading(path, KIND):
        file = open_file(path)
        if file.nbytes > _MOST_METADATA_BYTES:
            raise CheckpointError.damaged(path, "long metadata", file.nbytes)
        fields = _fields(read_pickle(file.read(0, file.nbytes)), _METADATA)
        entries: Mapping[str, Any] = fields["state_dict_metadata"]
        names, others = _names_of(folder, entries, fields.get("planner_data"), key)
        places = _places_of(fields["storage_data"])
        open_once = functools.cache(open_file)
        checkpoint = Checkpoint(folder, KIND, metadata={"format": "pt"}, others=others)
        for entry, name in names.items():
            tensor = _fields(entries[entry], _TENSOR)
            spec = Spec(_dtype_of(path, entry, tensor["properties"]), lengths_of(tensor["size"]))
            cells = []
            for chunk in tensor["chunks"]:
                offsets, sizes = (lengths_of(_fields(chunk, _CHUNK)[word]) for word in ("offsets", "sizes"))
                if math.prod(sizes):
                    piece = _open_piece(folder, open_once, name, places.get((entry, offsets)))
                    if piece.spec != Spec(spec.dtype, sizes):
                        raise CheckpointFormatError.pieces(folder, name, f"has a piece of {piece.spec}")
                    cells.append(Cell(offsets, piece))
            _check_grid(folder, name, spec, cells)
            cells.sort(key=lambda cell: cell.offsets)
            is_one = len(cells) == 1 and cells[0].tensor.spec == spec
            checkpoint.tensors[name] = cells[0].tensor if is_one else _GriddedTensor(spec, name, tuple(cells), scratch)
    return checkpoint


def _fields(value: Any, *classes: Name) -> dict[str, Any]:
    """Return the fields of an object of one of these classes."""
    if not isinstance(value, PickledCall) or value.function not in classes or not isinstance(value.state, dict):
        raise TypeError("its metadata holds something else than PyTorch writes")
    return value.state


def _dtype_of(path: Path, name: str, properties: Any) -> str:
    known: Any = properties
    if getattr(known, "function", None) != _PROPERTIES:
        raise TypeError("its metadata holds something else than PyTorch writes")
    dtype = known.state[0]
    if not isinstance(dtype, Name) or dtype.module != "torch" or dtype.name not in DTYPES:
        raise CheckpointError.dtype(path, name, str(dtype))
    return dtype.name


def _names_of(
    folder: Path, entries: Mapping[str, Any], paths: Any, key: str | None
) -> tuple[dict[str, str], list[str]]:
    """Return the model's tensors, entry by name in the model, and the names of all other entries."""
    found: dict[str, tuple[str, ...]] = {}
    for entry, value in entries.items():
        if not isinstance(entry, str):
            raise TypeError
        if not (isinstance(value, PickledCall) and value.function == _BYTES):
            path = paths.get(entry) if isinstance(paths, dict) else None
            found[entry] = tuple(map(str, path)) if isinstance(path, tuple) and path else (entry,)
    root = _root_of(list(found.values())) if key is None else () if key == TOP else _split(key, found.values())
    names = {}
    for entry, path in found.items() if root is not None else ():
        inner = path[len(root or ()) :]
        is_nested = len(inner) > 1
        is_models = not is_nested or (root and (root[-1] in MODELS or not inner[0].startswith(OF_A_RUN)))
        if path[: len(root or ())] == root and inner and is_models:
            names[entry] = ".".join(inner)
    if not names and entries:
        groups = {path[0] for path in found.values() if len(path) > 1 and not path[0].startswith(OF_A_RUN)}
        top = [entry for entry, path in found.items() if len(path) == 1]
        raise CheckpointFormatError.key(folder, sorted(groups), key, top=top)
    return names, [entry for entry in entries if entry not in names]


def _root_of(paths: Sequence[tuple[str, ...]]) -> tuple[str, ...] | None:
    """Return the nested names of the mapping that is the model: () for the top, None if several may be."""
    names = {path[0] for path in paths if len(path) > 1 and not path[0].startswith(OF_A_RUN)}
    has_top = any(len(path) == 1 for path in paths)
    if not names:
        return () if has_top else None
    if len(names) > 1 or (has_top and names.isdisjoint(MODELS)):
        return None
    [name] = names
    inner = _root_of([path[1:] for path in paths if len(path) > 1 and path[0] == name]) if name not in MODELS else ()
    return (name, *inner) if inner and inner[-1] in MODELS else (name,)


def _split(key: str, paths: Iterable[tuple[str, ...]]) -> tuple[str, ...] | None:
    """Return the nested names for which a key with dots stands; the names may have dots, too."""
    prefixes = {path[:count] for path in paths for count in range(1, len(path))}
    return next((prefix for prefix in prefixes if ".".join(prefix) == key), None)


def _places_of(storage: Any) -> dict[tuple[str, tuple[int, ...]], tuple[str, int, int]]:
    """Return the file, first byte and number of bytes of each piece, by its tensor and offsets."""
    places = {}
    for index, info in storage.items():
        at, where = _fields(index, _INDEX), _fields(info, _INFO)
        if where.get("transform_descriptors"):
            raise TypeError("its pieces are transformed, as by compression")
        if at.get("offset") is not None:
            first, nbytes = lengths_of((where["offset"], where["length"]))
            places[at["fqn"], lengths_of(at["offset"])] = (where["relative_path"], first, nbytes)
    return places


def _open_piece(
    folder: Path, open_once: Callable[[Path], OpenFile], name: str, place: tuple[str, int, int] | None
) -> Tensor:
    if place is None:
        raise CheckpointFormatError.pieces(folder, name, "has a piece that lies nowhere")
    relative, first, nbytes = place
    if relative in {"", ".", ".."} or _UNSAFE.search(relative):
        raise CheckpointFormatError.pieces(folder, name, f"lies in {relative!r}, which is no file beside the metadata")
    file = open_once(folder / relative)
    if first + nbytes > file.nbytes:
        raise CheckpointError.truncated(file.path, name)
    return read_single_tensor(file, name, start=first, stop=first + nbytes)


def _check_grid(folder: Path, name: str, spec: Spec, cells: Sequence[Cell]) -> None:
    """Refuse pieces that overlap, leave gaps, or are no grid."""
    if not spec.nbytes and not cells:
        return
    cuts = [sorted({cell.offsets[axis] for cell in cells}) for axis in range(len(spec.shape))]
    ends = [[*starts[1:], length] for starts, length in zip(cuts, spec.shape, strict=True)]
    sizes = [dict(zip(starts, stops, strict=True)) for starts, stops in zip(cuts, ends, strict=True)]
    is_whole = len(cells) == math.prod(map(len, cuts)) == len({cell.offsets for cell in cells}) and all(
        starts[0] == 0 for starts in cuts
    )
    for cell in cells:
        stops = [at + length for at, length in zip(cell.offsets, cell.tensor.spec.shape, strict=True)]
        is_whole = is_whole and stops == [sizes[axis][at] for axis, at in enumerate(cell.offsets)]
    if not is_whole:
        raise CheckpointFormatError.pieces(folder, name, "is in pieces that overlap or leave gaps")
