"""The memory of PyTorch's CPU tensors as NumPy arrays, and back, without copying."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Hashable, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import torch

from treefold.backends.interface import HostArray
from treefold.backends.rows import Row, read_arrays, read_tensors
from treefold.compiled import HAS_NATIVE
from treefold.dtypes import DTYPES as TABLE
from treefold.dtypes import numpy_dtype

#: DLPack's C functions for tensors; older releases of PyTorch have none.
EXCHANGE: Any = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None) if HAS_NATIVE else None
if HAS_NATIVE:
    from treefold._native import tensors as _exchange_tensors
if EXCHANGE is not None:
    try:
        _exchange_tensors(EXCHANGE, (), 0)  # looks at the table's version
    except ValueError:  # another version of DLPack
        EXCHANGE = None

#: The types that are accepted; not their subclasses.
ACCEPTED = frozenset({torch.Tensor, torch.nn.Parameter})

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
#: Asked of every tensor of every call; a map over methods asks without a frame of Python.
_REQUIRES_GRAD = attrgetter("requires_grad")
_IS_NEG, _IS_CONJ, _OFFSET = torch.Tensor.is_neg, torch.Tensor.is_conj, torch.Tensor.storage_offset
_STORAGE, _NBYTES = torch.Tensor.untyped_storage, torch.UntypedStorage.nbytes


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


def read(backend: Any, tensors: tuple[Any, ...], *, is_recording: bool, extra: Hashable = None) -> Row | None:
    """Return plain tensors of one dtype as a row of a backend, None where they make none.

    ``is_recording``: whether autograd is; then only leaves may require gradients. ``extra`` joins the key, see ``Row``.
    """
    dtype = tensors[0].dtype
    host_dtype = _HOST_DTYPES.get(dtype)
    if host_dtype is None or not _are_plain(tensors, is_recording=is_recording):
        return None
    if EXCHANGE is not None:
        row = read_tensors(backend, EXCHANGE, tensors, host_dtype, extra)
        return row if row is not None and _are_whole(tensors) else None
    if not all(tensor.is_cpu and tensor.dtype is dtype for tensor in tensors):
        return None
    views = [memory(tensor) for tensor in tensors]
    return None if any(view is None for view in views) else read_arrays(backend, tensors, tuple(views), extra)


def _are_plain(tensors: tuple[Any, ...], *, is_recording: bool) -> bool:
    """Tell whether these are tensors and no subclasses, of which autograd would say nothing."""
    if not ACCEPTED.issuperset(map(type, tensors)):
        return False
    if not is_recording or not any(map(_REQUIRES_GRAD, tensors)):
        return True
    return all(tensor.grad_fn is None for tensor in tensors if tensor.requires_grad)


def _are_whole(tensors: tuple[Any, ...]) -> bool:
    """Tell whether row-major tensors of one shape hold what their memory says, and have all of it.

    Negation and conjugation may be lazy, and storages can be resized under their tensors.
    """
    if any(map(_IS_NEG, tensors)) or (tensors[0].is_complex() and any(map(_IS_CONJ, tensors))):
        return False
    nbytes, storages = tensors[0].nbytes, map(_STORAGE, tensors)
    if not any(map(_OFFSET, tensors)):
        return all(size >= nbytes for size in map(_NBYTES, storages))
    itemsize = tensors[0].itemsize
    ends = [nbytes + tensor.storage_offset() * itemsize for tensor in tensors]
    return all(storage.nbytes() >= end for storage, end in zip(storages, ends, strict=True))


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
        return _exchange_tensors(EXCHANGE, arrays, _dlpack_code(dtype))
    # PyTorch has no tensors that cannot be written.
    own = [array if array.flags.writeable else array.copy() for array in arrays]
    if dtype.isbuiltin == 1:  # 2: of a package like ml_dtypes
        return [torch.from_numpy(array) for array in own]
    bits = f"int{8 * dtype.itemsize}"
    return [torch.from_numpy(array.view(bits)).view(DTYPES[dtype.name]) for array in own]


@functools.cache  # NumPy works a dtype's name out each time
def _dlpack_code(dtype: np.dtype[Any]) -> int:
    return _DLPACK_CODES[dtype.name]


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
    """Count up the version counters of tensors, which autograd compares; inference tensors have none."""
    try:
        torch.autograd.graph.increment_version(tensors)
    except RuntimeError:
        counted = [tensor for tensor in tensors if not tensor.is_inference()]
        if len(counted) == len(tensors):
            raise
        count_writes(counted)
    except TypeError:  # older releases of PyTorch take one tensor
        for tensor in tensors:
            torch.autograd.graph.increment_version(tensor)
