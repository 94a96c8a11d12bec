"""PyTorch tensors: CPU tensors are host memory, read and written in place; others keep their devices.

``torch.Tensor`` and ``Parameter`` themselves are accepted, strided, in any layout. Subclasses are refused, without
calling any method of theirs: their memory may hold something else than their numbers, as a masked array's does. Results
never carry gradients. Writes that PyTorch does not see increase the version counters, so that autograd notices them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from treefold.backends.interface import ArrayBackend, Exchange, HostArray, Refusal, Row
from treefold.backends.numpy import NumpyBackend
from treefold.backends.numpy_fold import fold_block, scale_block
from treefold.backends.torch_fold import fold_on_device, folds_on_device, scale_on_device
from treefold.backends.torch_memory import (
    ACCEPTED,
    DTYPES,
    NAMELESS,
    NAMES,
    adopted,
    count_writes,
    exchange,
    footprint,
    memory,
    new_row,
    on_host,
    read,
    resolved,
)
from treefold.backends.tracing import mark_for_torch
from treefold.devices import HOST_DEVICES, Device, device_type, torch_device
from treefold.errors import ArgumentError
from treefold.errors.words import some
from treefold.fold import Fold

_DEVICE = torch._C.TensorBase.device  # noqa: SLF001 - a subclass cannot answer for it

_SUBCLASS = "A subclass may mean something else; pass tensor.as_subclass(torch.Tensor), or the plain tensors inside."
_SPARSE = "Pass treefold.IndexedSlices(values, indices, shape) for sparse rows, or call to_dense()."
_NESTED = "Pass the tensors that it consists of, in a list."
_DTYPE = "Convert it to a plain dtype first: dequantize() for a quantised tensor, to(torch.float32) for others."
_FOREIGN_DTYPE = 'NumPy knows this dtype by the package ml_dtypes only. Run pip install "treefold[torch]".'
_META = "Only ops.plan takes tensors without contents; put it on a device first."
_GRAD = "Results carry no gradients: pass tensor.detach(), or call treefold under torch.no_grad()."
_LEAF = (
    "While gradients are recorded, nothing may be written into it: call treefold under torch.no_grad(), or pass "
    "tensor.detach()."
)
_NO_MEMORY = "Its storage was freed, or a transform of torch.func stands for it; call treefold where it has memory."

_numpy = NumpyBackend()
mark_for_torch()


class TorchBackend(ArrayBackend):
    """Tensors of every dtype that NumPy or ml_dtypes knows; ``cuda:k`` is ``gpu:k``, and every ``cpu:k`` is the CPU."""

    name = "PyTorch"
    row_types = ACCEPTED

    def owns(self, value: object) -> bool:
        """Own tensors, and also subclasses, so that ``refusal`` can give the reason against them."""
        return issubclass(type(value), torch.Tensor)

    def has_device(self, device: str) -> bool:
        """Return whether it is a ``cpu:k``, all of which are the host's memory, or a GPU that PyTorch reports."""
        found = Device.parse(device)
        return found.type == "cpu" or (found.type == "gpu" and found.index < torch.cuda.device_count())

    def describe_devices(self) -> str:
        gpus = [f"gpu:{index}" for index in range(torch.cuda.device_count())]
        return f"{HOST_DEVICES}; {some(gpus)}" if gpus else HOST_DEVICES

    def why_missing(self, device: str) -> str:
        if device_type(device) != "gpu" or torch.cuda.device_count():
            return ""
        is_built = torch.version.cuda is not None or torch.version.hip is not None
        return "PyTorch finds no GPU." if is_built else "This PyTorch is built without CUDA."

    def name_of(self, device: object) -> str | None:
        """Return the name of a ``torch.device``; CUDA without an index is the current device, as in PyTorch."""
        if not isinstance(device, torch.device):
            return None
        is_open = device.type == "cuda" and device.index is None and torch.cuda.device_count() > 0
        return f"cuda:{torch.cuda.current_device()}" if is_open else str(device)

    def device_of(self, array: Any) -> str | None:
        """Return the device's name; None for the CPU, and for the meta device, which holds nothing."""
        with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - a subclass is not asked
            device = _DEVICE.__get__(array)
        if device.type in {"cpu", "meta"}:
            return None
        return f"{'gpu' if device.type == 'cuda' else device.type}:{device.index or 0}"

    def refusal(self, array: Any) -> Refusal | None:
        """Refuse all but plain strided tensors with contents, and tensors that autograd is recording."""
        unreadable = _form_refusal(array)
        if unreadable is not None:
            return unreadable
        if array.is_meta:
            return Refusal("a meta tensor", _META)
        if array.requires_grad and array.grad_fn is not None and torch.is_grad_enabled():
            return Refusal("a tensor with grad_fn", _GRAD)
        if array.is_cpu and memory(resolved(array)) is None:
            return Refusal("a tensor without memory of its own", _NO_MEMORY)
        return None

    def shape_dtype(self, array: Any) -> tuple[tuple[int, ...], str]:
        """Return NumPy's name of the dtype, or PyTorch's if NumPy has none.

        Raises:
            ArgumentError: It is nested, and has no shape.

        """
        if array.is_nested:
            raise ArgumentError.unsupported_array(owner="The value", where="", got="a nested tensor", advice=_NESTED)
        dtype = array.dtype
        return tuple(array.shape), NAMES.get(dtype) or str(dtype).removeprefix("torch.")

    def copy_to(self, array: Any, device: str) -> Any:
        """Return a row-major copy without gradients; PyTorch copies between GPUs."""
        with torch.no_grad():
            copy = torch.empty(array.shape, dtype=array.dtype, device=torch_device(device))
            return copy.copy_(array.detach())

    def combine(self, arrays: Sequence[Any], fold: Fold, *, dtype: str, divisor: int | None, result: str) -> Any:
        """Fold host memory by the reference, which decides the bits, and other memory on its device."""
        if not arrays[0].is_cpu and folds_on_device(fold, dtype):
            return fold_on_device(arrays, fold, dtype=dtype, divisor=divisor, result=DTYPES[result])
        folded = fold_block([on_host(part) for part in arrays], fold, dtype=dtype, divisor=divisor, result=result)
        return self._back(folded, arrays[0])

    def scale(self, array: Any, divisor: int, result: str) -> Any:
        if not array.is_cpu and array.dtype not in {torch.int64, torch.uint64}:
            return scale_on_device(array, divisor, DTYPES[result])
        return self._back(scale_block(on_host(array), divisor, result), array)

    def ravel_concat(self, arrays: Sequence[Any]) -> Any:
        """Return a flat view of one tensor if its layout allows, or a new tensor."""
        flat = [array.detach().reshape(-1) for array in arrays]
        return flat[0] if len(flat) == 1 else torch.cat(flat)

    def split(self, array: Any, start: int, stop: int) -> Any:
        """Return a view."""
        return array.detach()[start:stop]

    def reshape(self, array: Any, shape: tuple[int, ...]) -> Any:
        """Return a view."""
        return array.detach().reshape(shape)

    def moveaxis(self, array: Any, source: int, target: int) -> Any:
        """Return a view."""
        return array.detach().movedim(source, target)

    def densify(self, values: Any, indices: Any, shape: tuple[int, ...]) -> Any:
        """Add duplicates in the accumulator's dtype, in the same order on every run."""
        return self._back(_numpy.densify(on_host(values), on_host(indices), shape), values)

    def index_bounds(self, indices: Any) -> tuple[int, int]:
        return int(indices.min()), int(indices.max())

    def assign(self, target: Any, source: Any) -> None:
        """Write through any strides of the target."""
        with torch.no_grad():
            target.detach().copy_(source)

    def is_writable(self, array: Any) -> bool:
        """Return whether the tensor is not lazily conjugated, negated or allocated."""
        return not (array.is_conj() or array.is_neg() or array._is_zerotensor())  # noqa: SLF001 - no public name

    def write_refusal(self, array: Any) -> Refusal | None:
        """Refuse leaves that autograd is recording, as PyTorch does: their graph would begin with another value."""
        is_recorded = array.requires_grad and torch.is_grad_enabled()
        return Refusal("a leaf that requires gradients", _LEAF) if is_recorded else None

    def synchronize(self, array: Any) -> None:
        """Wait for the device's queue; the CPU has none."""
        if not array.is_cpu:
            torch.cuda.synchronize(array.device)

    def host_view(self, array: Any) -> HostArray | None:
        """Return the memory of a CPU tensor; a lazy one, which cannot be ``out``, is copied."""
        return memory(resolved(array)) if type(array) in ACCEPTED and array.is_cpu else None

    def footprint(self, array: Any) -> HostArray | None:
        """Return the memory of tensors on devices, too."""
        return self.host_view(array) if array.is_cpu else footprint(array)

    def from_host(self, array: HostArray, device: str) -> Any:  # noqa: ARG002 - every cpu:k is the CPU
        """Return a tensor on the array's memory, which it keeps alive; a read-only array is copied."""
        return adopted([array])[0]

    def from_hosts(self, arrays: Sequence[HostArray], devices: Sequence[str]) -> list[Any]:  # noqa: ARG002 - as above
        """Return tensors on the memory of arrays of one dtype."""
        return adopted(arrays)

    def new_row(self, like: Row, dtype: np.dtype[Any], count: int) -> Row:
        """Return new tensors; older releases of PyTorch take over NumPy's arrays."""
        return new_row(self, like, dtype, count)

    def read(self, arrays: tuple[Any, ...]) -> Row | None:
        """Read plain tensors and leaves of autograd, in host memory or on one GPU."""
        return read(self, arrays, is_recording=torch.is_grad_enabled())

    def exchange(self, arrays: Sequence[Any]) -> Exchange | None:
        """Return None, too, if autograd is recording the operations behind one of the arrays."""
        is_recording = torch.is_grad_enabled()
        if is_recording and any(getattr(array, "requires_grad", False) and not array.is_leaf for array in arrays):
            return None
        return exchange()

    def wrote(self, arrays: Sequence[Any]) -> None:
        """Increase the version counters: a backward pass that needs the old contents then raises an error."""
        count_writes(arrays)

    def _back(self, array: HostArray, like: Any) -> Any:
        """Return a result in host memory on the device of the tensors that it was made from."""
        tensor = self.from_host(array, "cpu:0")
        return tensor if like.is_cpu else tensor.to(like.device)


def _form_refusal(array: Any) -> Refusal | None:
    if type(array) not in ACCEPTED:
        return Refusal(f"a {type(array).__name__}, a subclass of torch.Tensor", _SUBCLASS)
    if array.is_nested:
        return Refusal("a nested tensor", _NESTED)
    if array.layout is not torch.strided:
        return Refusal(f"a tensor of layout {array.layout}", _SPARSE)
    if array.dtype not in NAMES:
        return Refusal(f"a tensor of dtype {array.dtype}", _DTYPE)
    if array.dtype in NAMELESS:
        return Refusal(f"a tensor of dtype {array.dtype}", _FOREIGN_DTYPE)
    return None
