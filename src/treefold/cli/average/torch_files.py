"""PyTorch's files, read with ``weights_only``, mapped into memory, and taken if they hold tensors by name."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch

from treefold.cli.average.checkpoint import Bytes, Contents, MemoryContents, Spec, reading
from treefold.cli.average.mapped import GuardedContents
from treefold.cli.average.reordered import ReorderedContents, spooled
from treefold.cli.average.torch_archive import check_archive
from treefold.dtypes import DTYPES
from treefold.errors import CheckpointError

_KIND = "PyTorch"
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
            check_archive(path)
            contents = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
            if not isinstance(contents, dict):
                raise CheckpointError.not_tensors(path, f"a {type(contents).__name__}")
            self._tensors: dict[str, torch.Tensor] = {}
            self.specs: dict[str, Spec] = {}
            for name, tensor in dict.items(contents):  # not contents.items(): attributes come out of the file, too
                self.specs[name] = self._spec(name, tensor)
                self._tensors[name] = torch.Tensor.detach(tensor)

    def _spec(self, name: object, tensor: object) -> Spec:
        if not isinstance(name, str):
            raise CheckpointError.not_tensors(self.path, f"a {type(name).__name__} for a name")
        if not _is_text(name):
            raise CheckpointError.not_text(self.path, name)
        if not isinstance(tensor, torch.Tensor):
            raise CheckpointError.not_tensors(self.path, f"a {type(tensor).__name__} at {name!r}")
        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype not in DTYPES:
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
