"""The memory of PyTorch's CPU tensors as NumPy arrays, and back, without copying."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from treefold.backends.interface import DeviceRow, HostArray
from treefold.compiled import HAS_NATIVE
from treefold.dtypes import DTYPES as TABLE
from treefold.dtypes import numpy_dtype

#: DLPack's C functions for tensors; older releases of PyTorch have none.
EXCHANGE: Any = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None) if HAS_NATIVE else None
if HAS_NATIVE:
    from treefold._native import addresses as _exchange_addresses
    from treefold._native import tensors as _exchange_tensors
    from treefold._native import views as _exchange_views
if EXCHANGE is not None:
    try:
        _exchange_views(EXCHANGE, (), np.dtype("float32"))  # looks at the table's version
    except ValueError:  # another version of DLPack
        EXCHANGE = None

#: The types that are taken; not their subclasses.
TAKEN = frozenset({torch.Tensor, torch.nn.Parameter})

_DLPACK_CODES = {row.name: row.dlpack for row in TABLE.values() if row.dlpack is not None}
#: NumPy's name of each dtype, and back.
NAMES = {getattr(torch, name): name for name in _DLPACK_CODES}
DTYPES = {name: dtype for dtype, name in NAMES.items()}
#: Dtypes that NumPy knows by ml_dtypes only, where that is not installed.
NAMELESS = frozenset(
    dtype for dtype, name in NAMES.items() if not (TABLE[name].is_numpys or importlib.util.find_spec("ml_dtypes"))
)
#: NumPy's dtypes of the others.
_HOST_DTYPES = {dtype: numpy_dtype(name) for dtype, name in NAMES.items() if dtype not in NAMELESS}
#: For dtypes of ml_dtypes: integers of the same size, and the dtype to view those as.
_VIEWS = {
    dtype: (getattr(torch, f"int{8 * host.itemsize}"), host)
    for dtype, host in _HOST_DTYPES.items()
    if not TABLE[host.name].is_numpys
}
#: DLPack's device types that are GPUs: CUDA, ROCm.
_GPUS = {2: "gpu", 10: "gpu"}


def memory(tensor: Any) -> HostArray | None:
    """Return the memory of a CPU tensor, None if it has none of its own or less than its shape says."""
    foreign = _VIEWS.get(tensor.dtype)
    if tensor.requires_grad:
        tensor = tensor.detach()
    try:
        view: HostArray = tensor.numpy() if foreign is None else tensor.view(foreign[0]).numpy().view(foreign[1])
        nbytes = tensor.untyped_storage().nbytes() - tensor.storage_offset() * view.itemsize
    except (RuntimeError, TypeError):  # sparse, quantised, lazily conjugated, a stand-in of a transform …
        return None
    extent = view.nbytes
    if extent and not view.flags.c_contiguous:
        steps = zip(view.shape, view.strides, strict=True)
        extent = view.itemsize + sum((length - 1) * stride for length, stride in steps)
    return view if extent <= nbytes else None  # a storage may have been resized under its tensors


def glanced(tensors: Sequence[Any], *, is_recording: bool) -> tuple[HostArray, ...] | None:
    """Return ``memory`` of plain row-major tensors of one dtype, in the least time; None where some need more care.

    ``is_recording``: whether autograd is; then only leaves may require gradients.
    """
    dtype = tensors[0].dtype
    if not _are_plain(tensors, dtype, is_recording=is_recording):
        return None
    if EXCHANGE is not None and dtype in _HOST_DTYPES:
        views: tuple[HostArray, ...] | None = _exchange_views(EXCHANGE, tuple(tensors), _HOST_DTYPES[dtype])
        return views if views is not None and _are_whole(tensors, dtype) else None
    seen = [memory(tensor) for tensor in tensors]
    plain = tuple(view for view in seen if view is not None and view.flags.c_contiguous)
    return plain if len(plain) == len(tensors) else None


def glanced_on_device(
    tensors: Sequence[Any], *, is_recording: bool, kinds: Mapping[int, str] = _GPUS
) -> DeviceRow | None:
    """Return where plain row-major tensors on one GPU lie, of one shape and dtype; None where some need more care.

    ``kinds``: treefold's names of DLPack's device types.
    """
    dtype = tensors[0].dtype
    if EXCHANGE is None or dtype not in NAMES or not _are_plain(tensors, dtype, is_recording=is_recording):
        return None
    found = _exchange_addresses(EXCHANGE, tuple(tensors))
    if found is None or not _are_whole(tensors, dtype):
        return None
    kind, index, shape, addresses = found
    return DeviceRow(f"{kinds[kind]}:{index}", shape, NAMES[dtype], addresses) if kind in kinds else None


def _are_plain(tensors: Sequence[Any], dtype: Any, *, is_recording: bool) -> bool:
    """Tell whether these are tensors of one dtype and no subclass, of which autograd would say nothing."""
    for tensor in tensors:
        if type(tensor) not in TAKEN or tensor.dtype is not dtype:
            return False
        if tensor.requires_grad and is_recording and tensor.grad_fn is not None:
            return False
    return True


def _are_whole(tensors: Sequence[Any], dtype: Any) -> bool:
    """Tell whether row-major tensors hold what is in their memory, and all of it: storages can be resized."""
    itemsize, is_complex = dtype.itemsize, dtype.is_complex
    for tensor in tensors:
        if tensor.is_neg() or (is_complex and tensor.is_conj()):
            return False
        if tensor.untyped_storage().nbytes() < tensor.nbytes + tensor.storage_offset() * itemsize:
            return False
    return True


def resolved(tensor: Any) -> Any:
    """Return a tensor without a lazy conjugation or negation: itself, or a copy."""
    return tensor.detach().resolve_conj().resolve_neg()


def on_host(tensor: Any) -> HostArray:
    """Return the contents of a tensor, copied if it is on a device."""
    view = memory(resolved(tensor).cpu())
    if view is None:
        raise AssertionError(tensor)  # a backend's refusal() looks at every tensor first
    return view


def adopted(arrays: Sequence[HostArray]) -> list[Any]:
    """Return tensors on the memory of arrays of one dtype, which lives as long as they; read-only arrays are copied."""
    dtype = arrays[0].dtype
    if EXCHANGE is not None:
        return _exchange_tensors(EXCHANGE, arrays, _DLPACK_CODES[dtype.name])
    # PyTorch has no tensors that cannot be written.
    own = [array if array.flags.writeable else array.copy() for array in arrays]
    if dtype.isbuiltin == 1:  # 2: of a package like ml_dtypes
        return [torch.from_numpy(array) for array in own]
    bits = f"int{8 * dtype.itemsize}"
    return [torch.from_numpy(array.view(bits)).view(DTYPES[dtype.name]) for array in own]


def footprint(tensor: Any) -> HostArray:
    """Return an array of a tensor's addresses, shape and strides. Reading it on a device would end the process."""
    return np.asarray(_Footprint(tensor))


class _Footprint:
    """NumPy's array interface, of bytes that only have a size."""

    def __init__(self, tensor: Any) -> None:
        itemsize = tensor.dtype.itemsize
        self.__array_interface__ = {
            "version": 3,
            "data": (tensor.data_ptr(), True),
            "shape": tuple(tensor.shape),
            "strides": tuple(stride * itemsize for stride in tensor.stride()),
            "typestr": f"|V{itemsize}",
        }


def count_writes(tensors: Sequence[Any]) -> None:
    """Count up the version counters of tensors, which autograd compares."""
    try:
        torch.autograd.graph.increment_version(tensors)
    except TypeError:  # older releases of PyTorch take one tensor
        for tensor in tensors:
            torch.autograd.graph.increment_version(tensor)
