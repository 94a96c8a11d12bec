"""PyTorch's files, read and written without PyTorch: an archive of one record per tensor, and a pickle that names them.

The pickle is read as data, and locates each tensor in the records.
"""

from __future__ import annotations

import contextlib
import functools
import io
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from treefold.averaging.archive import ArchiveRecord, ArchiveWriter, Record, read_archive
from treefold.averaging.pickles import Name, Persistent, PickledCall, read_pickle
from treefold.averaging.safetensors_files import is_text
from treefold.averaging.tensors import (
    Bytes,
    Checkpoint,
    Contents,
    OpenFile,
    ReorderedContents,
    Span,
    Spec,
    Tensor,
    reading,
)
from treefold.dtypes import DTYPES
from treefold.errors import CheckpointError, CheckpointFormatError

KIND = "PyTorch"
_PICKLE = "/data.pkl"
#: The dtypes of storages by the class that a pickle names. Of all dtypes that came later, PyTorch writes untyped ones.
_STORAGES = {f"{row.torch}Storage": row.name for row in DTYPES.values() if row.torch}
_UNTYPED = "UntypedStorage"
_MOST_LENGTH = (1 << 63) - 1
_MOST_DEPTH = 4  # of mappings around the tensors
#: The usual names of mappings that hold a model's tensors, and the value of --key for tensors outside of any.
MODELS = frozenset({"state_dict", "model", "model_state_dict", "model_state", "module", "net", "weights", "params"})
TOP = "."
#: Mappings of a training run, which may hold tensors that are no model's.
OF_A_RUN = ("optim", "callbacks", "loops", "lr_sched", "scheduler", "scaler", "rng")
_REBUILD_3 = Name("torch._utils", "_rebuild_tensor_v3")
_REBUILD_2 = (Name("torch._utils", "_rebuild_tensor_v2"), Name("torch._utils", "_rebuild_tensor"), _REBUILD_3)
_PARAMETERS = (Name("torch._utils", "_rebuild_parameter"), Name("torch._utils", "_rebuild_parameter_with_state"))
_FROM_TYPE = Name("torch._tensor", "_rebuild_from_type_v2")
_PLAIN_TYPES = (Name("torch", "Tensor"), Name("torch.nn.parameter", "Parameter"), Name("torch.nn.parameter", "Buffer"))
_ROOT = "archive"


class _Place(NamedTuple):
    """A place in memory: storage, first element, lengths, strides and marks. Tensors at one place are tied."""

    storage: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    marks: tuple[str, ...]


class _StridedSpec(NamedTuple):
    """A tensor without its place. ``reach``: the number of elements from the first to the last."""

    spec: Spec
    reach: int
    is_in_order: bool


@dataclass(frozen=True, slots=True)
class StridedTensor:
    """A tensor that is not stored row by row, or that a mark conjugates or negates."""

    spec: Spec
    name: str
    file: OpenFile
    start: int
    strides: tuple[int, ...]
    marks: tuple[str, ...]

    @contextlib.contextmanager
    def open(self) -> Iterator[Contents]:
        """Yield the elements in order, read from the mapped file."""
        item = self.spec.itemsize
        stop = self.start + _reach(self.spec.shape, self.strides) * item

        def stored() -> Bytes:
            found = self.file.view(self.start, stop, end=stop)
            if found.size < stop - self.start:
                raise CheckpointError.truncated(self.file.path, self.name)
            return found

        steps: list[Callable[..., object]] = [{"conj": np.conjugate, "neg": np.negative}[mark] for mark in self.marks]
        strides = [item * stride for stride in self.strides]
        array = np.ndarray(self.spec.shape, self.spec.numpy_dtype, stored().data, strides=strides)
        try:
            # The size is checked before each block: touching missing pages of a mapped file ends the process.
            yield ReorderedContents(array, *steps, before=stored)
        finally:
            self.file.forget(stop)


def read_torch(file: OpenFile, *, key: str | None = None) -> Checkpoint:
    """Locate the tensors of a file. ``key``: the mapping that holds them, with dots between nested names.

    Raises:
        CheckpointError: it is not as torch.save writes it, or holds no tensors by name.

    """
    with reading(file.path, KIND):
        archive = _Archive(file)
        found, others = _mapping_of(file.path, archive.read(), key)
        checkpoint = Checkpoint(file.path, KIND, others=others)
        # As in PyTorch's own safetensors files; some loaders require it.
        checkpoint.metadata["format"] = "pt"
        places: dict[_Place, str] = {}
        for name in list(found):
            place = archive.place(name, found.pop(name))  # frees the tensor's description, which is large
            if place in places:
                checkpoint.ties[name] = places[place]
            elif math.prod(place.shape):
                places[place] = name
            checkpoint.tensors[name] = archive.tensor(name, place)
    return checkpoint


def read_single_tensor(file: OpenFile, name: str, *, start: int, stop: int) -> Tensor:
    """Read a single tensor from a part of a file that torch.save wrote.

    Raises:
        CheckpointError: it is none.

    """
    with reading(file.path, KIND):
        archive = _Archive(file, start, stop)
        return archive.tensor(name, archive.place(name, archive.read()))


class _Archive:
    """The records of an archive, and the contents of its pickle."""

    def __init__(self, file: OpenFile, start: int = 0, stop: int | None = None) -> None:
        self.file = file
        self.records = read_archive(file, start, stop)
        pickles = [name for name in self.records if name.endswith(_PICKLE)]
        if len(pickles) != 1:
            raise CheckpointError.damaged(file.path, "no pickle")
        self.root = pickles[0].removesuffix(_PICKLE)
        order = self.records.get(f"{self.root}/byteorder")
        if order is not None and file.read(*order) != b"little":
            raise CheckpointError.damaged(file.path, "byte order")

    def read(self) -> Any:
        return read_pickle(self.file.read(*self.records[f"{self.root}{_PICKLE}"]))

    def place(self, name: str, value: Any) -> _Place:
        """Return where a tensor lies, in elements."""
        call = _plain(value)
        if call is None:
            raise CheckpointError.pickle_needed(self.file.path, _name_of(value))
        storage, offset, shape, strides, *rest = call.arguments
        kind, key, length = _storage_of(storage)
        dtype = call.arguments[6].name if call.function == _REBUILD_3 else _STORAGES.get(kind, kind)
        marks = rest[-1] if rest and isinstance(rest[-1], dict) and call.function != _REBUILD_3 else {}
        shape, strides = lengths_of(shape), lengths_of(strides)
        if dtype not in DTYPES:
            raise CheckpointError.dtype(self.file.path, name, dtype)
        itemsize = DTYPES[dtype].bits // 8
        nbytes = length * (1 if kind == _UNTYPED else itemsize)
        record = self.records[f"{self.root}/data/{key}"]
        if record.nbytes != nbytes:
            raise CheckpointError.damaged(self.file.path, "record", key, record.nbytes, nbytes)
        layout = _strided_spec(dtype, shape, strides)
        if layout.spec.nbytes > nbytes:
            raise CheckpointError(
                f"{str(self.file.path)!r} holds {layout.spec!s} at {name!r}, which is larger than what is stored of "
                "it, as expand() makes them. Save its contiguous()."
            )
        if len(strides) != len(shape) or (lengths_of((offset,))[0] + layout.reach) * itemsize > nbytes:
            raise CheckpointError.damaged(self.file.path, "reach", name)
        signs = tuple(mark for mark in ("conj", "neg") if marks.get(mark))
        return _Place(key, offset, shape, strides, dtype, signs)

    def tensor(self, name: str, place: _Place) -> Tensor:
        """Return the tensor at a place."""
        spec, _, is_in_order = _strided_spec(place.dtype, place.shape, place.strides)
        record: Record = self.records[f"{self.root}/data/{place.storage}"]
        start = record.start + place.offset * spec.itemsize
        if not spec.nbytes or (is_in_order and not place.marks):
            return Span(spec, self.file, start)
        return StridedTensor(spec, name, self.file, start, place.strides, place.marks)


@functools.lru_cache(maxsize=1024)  # a model has many tensors, and few shapes
def _strided_spec(dtype: str, shape: tuple[int, ...], strides: tuple[int, ...]) -> _StridedSpec:
    """Return the spec of these lengths and strides; its reach is 0 if they differ in number."""
    is_whole = len(strides) == len(shape)
    reach, is_in_order = (_reach(shape, strides), _is_in_order(shape, strides)) if is_whole else (0, False)
    return _StridedSpec(Spec(dtype, shape), reach, is_in_order)


def _plain(value: Any) -> PickledCall | None:
    """Return the call that makes a plain tensor, without the layers of a parameter or a type; None for other values."""
    while isinstance(value, PickledCall):
        if value.function in _PARAMETERS:
            value = value.arguments[0]
        elif value.function == _FROM_TYPE and value.arguments[1] in _PLAIN_TYPES:
            value = PickledCall(value.arguments[0], value.arguments[2])
        else:
            return value if value.function in _REBUILD_2 else None
    return None


def _storage_of(storage: object) -> tuple[str, str, int]:
    """Return the class, key and length of a storage in a pickle."""
    if not isinstance(storage, Persistent):
        raise TypeError
    word, kind, key, _, length = storage.key
    if word != "storage" or not isinstance(kind, Name) or not isinstance(key, str):
        raise TypeError
    return kind.name, key, lengths_of((length,))[0]


def lengths_of(numbers: Any) -> tuple[int, ...]:
    """Return lengths, strides or offsets as whole numbers.

    Raises:
        ValueError: they are no lengths.

    """
    if isinstance(numbers, PickledCall):  # torch.Size
        [numbers] = numbers.arguments
    for number in numbers:
        if type(number) is not int or not 0 <= number <= _MOST_LENGTH:
            raise ValueError("lengths or strides that no tensor has")
    return tuple(numbers)


def _reach(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Return the number of elements from the first to the last in memory."""
    if 0 in shape:
        return 0
    return 1 + sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True))


def _is_in_order(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    step = 1
    for length, stride in zip(reversed(shape), reversed(strides), strict=True):
        if length > 1 and stride != step:
            return False
        step *= length
    return True


def _mapping_of(path: Path, contents: Any, key: str | None) -> tuple[dict[str, Any], list[str]]:
    """Return the mapping that holds tensors, without other entries, and the names of these."""
    if not isinstance(contents, dict):
        raise CheckpointError.not_tensors(path, _name_of(contents))
    if {"state", "param_groups"} <= contents.keys():
        raise CheckpointFormatError.named(path, "optimizer")
    found, others = {}, []
    for name, value in (contents if key in {None, TOP} else _at(path, contents, str(key))).items():
        is_tensor = _is_tensor(value)
        if is_tensor and not isinstance(name, str):
            raise CheckpointError.not_tensors(path, f"a {type(name).__name__} for a name")
        if is_tensor and not is_text(name):
            raise CheckpointError(f"{str(path)!r} holds a tensor named {name!a}, which is no Unicode text. Rename it.")
        if is_tensor:
            found[name] = value
        else:
            others.append(str(name))
    places = sorted(_places(contents)) if key is None or not found else []
    if key is None and len(places) == 1 and (not found or places[0].rpartition(".")[2] in MODELS):
        # Tensors beside a model are numbers of its training, such as a loss.
        model, others = _mapping_of(path, contents, places[0])
        return model, [*others, *found]
    if places or (key not in {None, TOP} and not found) or (contents and not found):
        raise CheckpointFormatError.key(path, places, key, top=list(found))
    return found, others


def _at(path: Path, contents: Mapping[Any, Any], key: str) -> Mapping[Any, Any]:
    found: Any = contents
    for part in [key] if key in contents else key.split("."):
        found = dict(_mappings_in(found)).get(part)
    if not isinstance(found, dict):
        raise CheckpointFormatError.key(path, sorted(_places(contents)), key)
    return found


def _mappings_in(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the mappings and sequences inside a mapping or a sequence, by name or number."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    for name, inner in items:
        if isinstance(name, str | int) and isinstance(inner, dict | list | tuple):
            yield str(name), inner


def _places(contents: Any, prefix: str = "", depth: int = 0) -> Iterator[str]:
    """Yield the keys of mappings that hold tensors directly, with dots between nested names."""
    for name, value in _mappings_in(contents) if depth <= _MOST_DEPTH else ():
        if not name.startswith(OF_A_RUN):
            items = value.items() if isinstance(value, dict) else ()
            if any(isinstance(key, str) and _is_tensor(inner) for key, inner in items):
                yield prefix + name
            yield from _places(value, f"{prefix}{name}.", depth + 1)


def _is_tensor(value: Any) -> bool:
    """Tell whether a value is a tensor, or an object of another class that holds stored numbers.

    Objects without stored numbers are left out, like numbers, texts and settings. An object with some may be a weight,
    and is refused later.
    """
    if not isinstance(value, PickledCall):
        return False
    if _plain(value) is not None or (isinstance(value.function, Name) and value.function.name.startswith("_rebuild")):
        return True
    seen: set[int] = set()
    todo: list[Any] = [value]
    while todo:
        item = todo.pop()
        if isinstance(item, Persistent) or item == _PLAIN_TYPES[0]:
            return True
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, PickledCall):
            todo += [item.function, item.arguments, item.state, item.items]
        elif isinstance(item, dict):
            todo += [*item.keys(), *item.values()]
        elif isinstance(item, list | tuple | set | frozenset):
            todo += item
    return False


def _name_of(value: Any) -> str:
    if isinstance(value, Persistent):
        return "bytes without a tensor"
    if isinstance(value, PickledCall):
        return str(value.function) if isinstance(value.function, Name) else "an object"
    return f"a {type(value).__name__}"


class TorchWriter:
    """Writes a dictionary of tensors as ``torch.save`` does: ``torch.load`` reads it, mapped or not."""

    def __init__(self, path: Path, file: BinaryIO, specs: Mapping[str, Spec], ties: Mapping[str, str]) -> None:
        """Write the pickle; the tensors must follow in its order. ``ties``: names that share the memory of others."""
        self.path = path
        self._specs, self._keys = specs, {name: str(number) for number, name in enumerate(specs)}
        self._archive = ArchiveWriter(file)
        pickled = _pickle({**specs, **{name: specs[kept] for name, kept in ties.items()}}, self._keys, ties)
        for name, contents in (("data.pkl", pickled), ("byteorder", b"little"), ("version", b"3\n")):
            with self._archive.record(f"{_ROOT}/{name}", len(contents)) as record:
                record.write(contents)

    def tensor(self, name: str) -> AbstractContextManager[ArchiveRecord]:
        """Yield a writer for the tensor's contents."""
        return self._archive.record(f"{_ROOT}/data/{self._keys[name]}", self._specs[name].nbytes)

    def close(self) -> None:
        """Write the archive's directory."""
        self._archive.close()


def _pickle(specs: Mapping[str, Spec], keys: Mapping[str, str], ties: Mapping[str, str]) -> bytes:
    """Return a pickle of protocol 2 of a dictionary of tensors."""
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
