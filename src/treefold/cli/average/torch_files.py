"""PyTorch's files, read with ``weights_only``, mapped into memory, and taken if they hold tensors by name.

What ``weights_only`` allows is more than tensors by name: among it functions that make a small file ask for any amount
of memory. So a file may name only what plain tensors need, and none of its records may be larger than it says.
"""

from __future__ import annotations

import contextlib
import os
import pickletools
import re
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

from treefold.cli.average.checkpoint import Bytes, Contents, MemoryContents, Spec, is_known
from treefold.cli.average.errors import CheckpointError, reading
from treefold.cli.average.mapped import GuardedContents
from treefold.cli.average.reordered import ReorderedContents, spooled

_KIND = "PyTorch"
_ARCHIVE = b"PK\x03\x04"
_PICKLE = "/data.pkl"
#: What a state_dict() names: dictionaries, tensors, parameters, and the types of their elements.
_PLAIN = re.compile(
    r"collections OrderedDict"
    r"|torch (Tensor|Size|[A-Z][A-Za-z0-9]*Storage|[a-z]+[0-9][a-z0-9_]*|bool)"
    r"|torch\.storage (UntypedStorage|TypedStorage|_LegacyStorage)"
    r"|torch\.nn\.parameter Parameter"
    r"|torch\._tensor _rebuild_from_type_v2"
    r"|torch\._utils (_rebuild_tensor(_v2|_v3)?|_rebuild_parameter(_with_state)?)"
)


#: Windows keeps the files that are mapped as they are.
_IS_GUARDED = hasattr(os, "readv")


class TorchCheckpoint:
    """An open file of what a model's ``state_dict()`` gives. Tensors by columns are put in order in ``scratch``."""

    def __init__(self, path: Path, scratch: Path) -> None:
        """Map the file; no tensor is read yet."""
        self.path, self._scratch = path, scratch
        self.metadata = {"format": "pt"}  # what PyTorch's own safetensors files say, and some loaders insist on
        with reading(path, _KIND):
            self._nbytes = path.stat().st_size
            self._check_archive()
            contents = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
            if not isinstance(contents, dict):
                raise CheckpointError.not_tensors(path, f"a {type(contents).__name__}")
            self._tensors: dict[str, torch.Tensor] = {}
            self.specs: dict[str, Spec] = {}
            for name, tensor in dict.items(contents):  # not contents.items(): attributes come out of the file, too
                self.specs[name] = self._spec(name, tensor)
                self._tensors[name] = torch.Tensor.detach(tensor)

    def _check_archive(self) -> None:
        with self.path.open("rb") as file:
            if file.read(len(_ARCHIVE)) != _ARCHIVE:
                message = (
                    "it is no zip archive, which torch.save has written since PyTorch 1.6; load it and save it again"
                )
                raise ValueError(message)
        with zipfile.ZipFile(self.path) as archive:
            entries = archive.infolist()
            is_stored = all(entry.compress_type == zipfile.ZIP_STORED for entry in entries)
            if not is_stored or sum(entry.file_size for entry in entries) > self._nbytes:
                message = "its records are packed, which torch.save does not do"
                raise ValueError(message)
            for entry in entries:
                if entry.filename.endswith(_PICKLE):
                    self._check_names(archive.read(entry))

    def _check_names(self, pickled: bytes) -> None:
        for opcode, what, _ in pickletools.genops(pickled):
            if opcode.name == "GLOBAL" and not _PLAIN.fullmatch(str(what)):
                raise CheckpointError.pickle_needed(self.path, str(what).replace(" ", "."))

    def _spec(self, name: object, tensor: object) -> Spec:
        if not isinstance(name, str):
            raise CheckpointError.not_tensors(self.path, f"a {type(name).__name__} for a name")
        if not _is_text(name):
            raise CheckpointError.not_text(self.path, name)
        if not isinstance(tensor, torch.Tensor):
            raise CheckpointError.not_tensors(self.path, f"a {type(tensor).__name__} at {name!r}")
        dtype = str(tensor.dtype).removeprefix("torch.")
        if not is_known(dtype):
            raise CheckpointError.dtype(self.path, name, dtype)
        spec = Spec(dtype, tuple(tensor.shape))
        if spec.nbytes > min(torch.Tensor.untyped_storage(tensor).nbytes(), self._nbytes):
            raise CheckpointError.expanded(self.path, name, str(spec))
        return spec

    @contextlib.contextmanager
    def tensor(self, name: str) -> Iterator[Contents]:
        """Give the tensor's bytes; one that is not row by row is put in order first."""
        spec, tensor = self.specs[name], self._tensors[name]
        stored, steps = _stored(tensor, spec), _steps(tensor)
        with contextlib.ExitStack() as opened:
            contents = (
                opened.enter_context(contextlib.closing(GuardedContents(stored)))
                if _IS_GUARDED
                else MemoryContents(stored)
            )
            if not spec.nbytes or (tensor.is_contiguous() and not steps):
                yield contents
            else:
                spool = spooled(contents, stored.size, self._scratch, path=self.path, name=name)
                strides = [spec.numpy_dtype.itemsize * stride for stride in tensor.stride()]
                array = np.ndarray(spec.shape, spec.numpy_dtype, opened.enter_context(spool).data, strides=strides)
                yield ReorderedContents(array, *steps)

    def close(self) -> None:
        """Let go of the file."""
        self._tensors.clear()


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _stored(tensor: torch.Tensor, spec: Spec) -> Bytes:
    """Return the bytes from a tensor's first element to its last, in the order in which they are stored."""
    itemsize = spec.numpy_dtype.itemsize
    storage: Bytes = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()).numpy()
    start = tensor.storage_offset() * itemsize
    last = sum((length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return storage[start : start + (1 + last) * itemsize] if spec.nbytes else storage[:0]


def _steps(tensor: torch.Tensor) -> list[Callable[..., object]]:
    """Return what makes elements of the stored ones: PyTorch conjugates and negates by a mark on the tensor."""
    return [*([np.conjugate] if tensor.is_conj() else []), *([np.negative] if tensor.is_neg() else [])]
