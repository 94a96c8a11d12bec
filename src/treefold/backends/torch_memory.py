"""The memory of PyTorch's CPU tensors as NumPy arrays, and back, without copying."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from treefold.backends.interface import DeviceRow, HostArray

ml_dtypes: Any
try:  # bfloat16 and the 8-bit floats are not NumPy's own
    import ml_dtypes
except ImportError:
    ml_dtypes = None
try:
    from treefold._native import addresses as _exchange_addresses
    from treefold._native import tensors as _exchange_tensors
    from treefold._native import views as _exchange_views

    #: DLPack's C functions for tensors; older releases of PyTorch have none.
    EXCHANGE: Any = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    if EXCHANGE is not None:
        _exchange_views(EXCHANGE, (), np.dtype("float32"))  # looks at the table's version
except (ImportError, ValueError):  # a pure-Python installation; another version of DLPack
    EXCHANGE = None

_NATIVE = tuple(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64))
_NATIVE += ("bool", "float16", "float32", "float64", "complex64", "complex128")
_FOREIGN = ("bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")

#: The types that are taken; not their subclasses.
TAKEN = frozenset({torch.Tensor, torch.nn.Parameter})

#: NumPy's name of each dtype, and back.
NAMES = {getattr(torch, name): name for name in (*_NATIVE, *_FOREIGN)}
DTYPES = {name: dtype for dtype, name in NAMES.items()}
#: For dtypes that NumPy does not know by itself: integers of the same size, and the dtype to view those as.
_VIEWS = {
    DTYPES[name]: (torch.int16 if name == "bfloat16" else torch.int8, np.dtype(getattr(ml_dtypes, name)))
    for name in _FOREIGN
    if ml_dtypes is not None
}
#: Dtypes that NumPy would know if ml_dtypes were installed.
NAMELESS = frozenset(DTYPES[name] for name in _FOREIGN) - _VIEWS.keys()
#: NumPy's dtypes of those that have one.
_HOST_DTYPES = {
    dtype: _VIEWS[dtype][1] if dtype in _VIEWS else np.dtype(name)
    for dtype, name in NAMES.items()
    if dtype not in NAMELESS
}
#: DLPack's codes, by a dtype's name or else by its kind.
_DLPACK_CODES = {"i": 0, "u": 1, "f": 2, "bfloat16": 4, "c": 5, "b": 6}
_DLPACK_CODES |= {"float8_e4m3fn": 10, "float8_e4m3fnuz": 11, "float8_e5m2": 12, "float8_e5m2fnuz": 13}
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
        return _exchange_tensors(EXCHANGE, arrays, _DLPACK_CODES.get(dtype.name) or _DLPACK_CODES[dtype.kind])
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
