"""PyTorch with GPUs that are not there: CPU tensors, each known by where it was put."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import torch

from treefold import backends
from treefold.backends.interface import HostArray, Row
from treefold.backends.torch import TorchBackend
from treefold.backends.torch_fold import fold_on_device, folds_on_device, scale_on_device
from treefold.backends.torch_memory import footprint, read
from treefold.fold import Fold


class PretendedGpus(TorchBackend):
    """PyTorch with ``count`` devices that are not the host's memory, ``gpu:0`` and so on.

    PyTorch's operations have the same effect as on a real device. Tensors that PyTorch makes by itself are on
    ``gpu:0``.
    """

    def __init__(self, count: int) -> None:
        self.devices = tuple(f"gpu:{index}" for index in range(count))
        self._placed: dict[int, tuple[str, Any]] = {}

    def put(self, tensor: Any, device: str) -> Any:
        """Note where a tensor is, and keep it, so that its memory is not given to another."""
        self._placed[tensor.untyped_storage()._cdata] = (device, tensor)
        return tensor

    def has_device(self, device: str) -> bool:
        return device in self.devices

    def device_of(self, array: Any) -> str:
        return self._placed.get(array.untyped_storage()._cdata, ("gpu:0", None))[0]

    def copy_to(self, array: Any, device: str) -> Any:
        return self.put(super().copy_to(array, "cpu:0"), device)

    def combine(self, arrays: Sequence[Any], fold: Fold, *, dtype: str, divisor: int | None, result: str) -> Any:
        [device] = {self.device_of(array) for array in arrays}
        if not folds_on_device(fold, dtype):
            return self.put(super().combine(arrays, fold, dtype=dtype, divisor=divisor, result=result), device)
        folded = fold_on_device(arrays, fold, dtype=dtype, divisor=divisor, result=getattr(torch, result))
        return self.put(folded, device)

    def scale(self, array: Any, divisor: int, result: str) -> Any:
        if array.dtype in {torch.int64, torch.uint64}:
            return self.put(super().scale(array, divisor, result), self.device_of(array))
        return self.put(scale_on_device(array, divisor, getattr(torch, result)), self.device_of(array))

    def ravel_concat(self, arrays: Sequence[Any]) -> Any:
        [device] = {self.device_of(array) for array in arrays}
        return self.put(super().ravel_concat(arrays), device)

    def densify(self, values: Any, indices: Any, shape: tuple[int, ...]) -> Any:
        return self.put(super().densify(values, indices, shape), self.device_of(values))

    def host_view(self, array: Any) -> None:
        """See nothing: a device's memory is not the host's."""

    def footprint(self, array: Any) -> HostArray:
        """Show its memory, as of any device."""
        return footprint(array)

    def read(self, arrays: tuple[Any, ...]) -> Row | None:
        """See where on the host the devices are."""
        places = tuple(self.device_of(array) for array in arrays)
        return read(self, arrays, is_recording=torch.is_grad_enabled(), extra=places)


@contextlib.contextmanager
def pretended_gpus(count: int) -> Iterator[PretendedGpus]:
    """Put them in PyTorch's place, inside the ``with`` block."""
    backends.loaded_backends()
    backend = PretendedGpus(count)
    loaded = mock.patch.dict(backends._loaded, {"torch": backend})
    of_rows = mock.patch.dict(backends._of_rows, dict.fromkeys(backend.row_types, backend))
    with loaded, of_rows:
        yield backend
