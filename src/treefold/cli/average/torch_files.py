"""PyTorch's files, read with ``weights_only``, mapped into memory, and taken if they hold tensors by name."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Iterator
from pathlib import Path

import torch

from treefold.cli.average.checkpoint import Contents, MemoryContents, Spec, is_known
from treefold.cli.average.errors import CheckpointError


class TorchCheckpoint:
    """An open file of what a model's ``state_dict()`` gives."""

    def __init__(self, path: Path) -> None:
        """Map the file; no tensor is read yet."""
        self.path = path
        self.metadata: dict[str, str] = {}
        try:
            contents = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except pickle.UnpicklingError:
            raise CheckpointError.pickle_needed(path) from None
        except (RuntimeError, EOFError, ValueError, KeyError, AttributeError) as error:
            reason = str(error).partition("\n")[0].partition(". ")[0].rstrip(".") or type(error).__name__
            raise CheckpointError.malformed(path, "PyTorch", reason) from None
        if not isinstance(contents, dict):
            raise CheckpointError.not_tensors(path, f"a {type(contents).__name__}")
        self._tensors: dict[str, torch.Tensor] = contents
        self.specs = {str(name): self._spec(name, tensor) for name, tensor in contents.items()}

    def _spec(self, name: object, tensor: object) -> Spec:
        if not isinstance(name, str):
            raise CheckpointError.not_tensors(self.path, f"a {type(name).__name__} for a name")
        if not isinstance(tensor, torch.Tensor):
            raise CheckpointError.not_tensors(self.path, f"a {type(tensor).__name__} at {name!r}")
        dtype = str(tensor.dtype).removeprefix("torch.")
        if tensor.layout is not torch.strided or tensor.device.type != "cpu" or not is_known(dtype):
            kind = dtype if tensor.layout is torch.strided else f"a tensor of layout {tensor.layout}"
            raise CheckpointError.dtype(self.path, name, kind)
        return Spec(dtype, tuple(tensor.shape))

    @contextlib.contextmanager
    def tensor(self, name: str) -> Iterator[Contents]:
        """Give the tensor's bytes; one that is not row-major is copied first."""
        flat = self._tensors[name].detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
        yield MemoryContents(flat.view(torch.uint8).numpy())

    def close(self) -> None:
        """Let go of the file."""
        self._tensors.clear()
