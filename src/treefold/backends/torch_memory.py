"""The memory of PyTorch's CPU tensors as NumPy arrays, and back, without copying."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Hashable, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import torch

from treefold.backends.interface import Exchange, HostArray, Row, new_arrays, new_tensors, read_arrays, read_tensors
from treefold.compiled import HAS_NATIVE
from treefold.dtypes import DTYPES as TABLE
from treefold.dtypes import numpy_dtype

#: DLPack's C functions for tensors; older releases of PyTorch have none.
EXCHANGE: Any = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None) if HAS_NATIVE else None
if EXCHANGE is not None:
    try:
        read_tensors(None, EXCHANGE, (), np.dtype(np.float32))  # looks at the table's version
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
#: Read of every tensor in every call; a map over these needs no Python frame.
_REQUIRES_GRAD, _IS_LEAF = attrgetter("requires_grad"), attrgetter("is_leaf")
#: Facts that DLPack leaves out: storage, and lazy negation; for complex numbers lazy conjugation, too.
_OF_REAL = torch.Tensor.untyped_storage, torch.UntypedStorage.nbytes, torch.Tensor.storage_offset, torch.Tensor.is_neg
_OF_COMPLEX = (*_OF_REAL, torch.Tensor.is_conj)


def memory(tensor: Any) -> HostArray | None:
    """Return the memory of a CPU tensor; None if it has none of its own, or less than its shape needs."""
    foreign = _VIEWS.get(tensor.dtype)
    if tensor.requires_grad:
        tensor = tensor.detach()
    try:
        view: HostArray = tensor.numpy() if foreign is None else tensor.view(foreign[0]).numpy().view(foreign[1])
        storage = tensor.untyped_storage()
        storage.data_ptr()  # raises where PyTorch has allocated nothing for the bytes
        nbytes = storage.nbytes() - tensor.storage_offset() * view.itemsize
    except (RuntimeError, TypeError):  # sparse, quantised, lazily conjugated, a stand-in of a transform …
        return None
    if not view.size:  # an empty view needs no memory
        return view
    extent = view.nbytes
    if not view.flags.c_contiguous:
        steps = zip(view.shape, view.strides, strict=True)
        extent = view.itemsize + sum((length - 1) * stride for length, stride in steps)
    return view if extent <= nbytes else None  # a storage may have been resized under its tensors


def read(backend: Any, tensors: tuple[Any, ...], *, is_recording: bool, extra: Hashable = None) -> Row | None:
    """Return plain tensors of one dtype as a row; None if they cannot be one.

    Args:
        backend: The backend of the row.
        tensors: At least one tensor.
        is_recording: Whether autograd is recording; then only leaves may require gradients.
        extra: A part of the row's key, see ``Row``.

    """
    dtype = tensors[0].dtype
    host_dtype = _HOST_DTYPES.get(dtype)
    # No subclasses: their ``requires_grad`` could be anything.
    if host_dtype is None or not ACCEPTED.issuperset(map(type, tensors)):
        return None
    if is_recording and any(map(_REQUIRES_GRAD, tensors)):
        if not all(map(_IS_LEAF, tensors)):
            return None
        extra = "leaves", extra  # they may be read, and not be written
    if EXCHANGE is not None:
        return read_tensors(
            backend, EXCHANGE, tensors, host_dtype, extra, _OF_COMPLEX if dtype.is_complex else _OF_REAL
        )
    if not all(tensor.is_cpu and tensor.dtype is dtype for tensor in tensors):
        return None
    views = [memory(tensor) for tensor in tensors]
    return None if any(view is None for view in views) else read_arrays(backend, tensors, tuple(views), extra)


def exchange() -> Exchange | None:
    """Return the functions by which the core reads plain tensors of real numbers; None if PyTorch lacks them."""
    return None if EXCHANGE is None else Exchange(tuple(ACCEPTED), EXCHANGE, _OF_REAL)


def resolved(tensor: Any) -> Any:
    """Return a tensor without a lazy conjugation, negation or allocation: itself, or a copy."""
    tensor = tensor.detach().resolve_conj().resolve_neg()
    return tensor.clone() if tensor._is_zerotensor() else tensor  # noqa: SLF001 - no public name


def on_host(tensor: Any) -> HostArray:
    """Return the contents of a tensor, copied if it is on a device."""
    view = memory(resolved(tensor).cpu())
    if view is None:
        raise AssertionError(tensor)  # a backend's refusal() looks at every tensor first
    return view


def adopted(arrays: Sequence[HostArray]) -> list[Any]:
    """Return tensors on the memory of arrays of one dtype, which they keep alive; read-only arrays are copied."""
    dtype = arrays[0].dtype
    # PyTorch has no tensors that cannot be written.
    own = [array if array.flags.writeable else array.copy() for array in arrays]
    if TABLE[dtype.name].is_numpys:
        return [torch.from_numpy(array) for array in own]
    bits = f"int{8 * dtype.itemsize}"
    return [torch.from_numpy(array.view(bits)).view(DTYPES[dtype.name]) for array in own]


def new_row(backend: Any, like: Row, dtype: np.dtype[Any], count: int) -> Row:
    """Return a row of new tensors, of another row's shape; without DLPack's functions, of NumPy arrays."""
    if EXCHANGE is None:
        return new_arrays(None, like, dtype, count)
    return new_tensors(backend, like, dtype, count, EXCHANGE, _dlpack_code(dtype))


@functools.cache  # NumPy works a dtype's name out each time
def _dlpack_code(dtype: np.dtype[Any]) -> int:
    return _DLPACK_CODES[dtype.name]


def footprint(tensor: Any) -> HostArray:
    """Return an array of a tensor's addresses, shape and strides. Reading it on a device would end the process."""
    return np.asarray(_Footprint(tensor))


class _Footprint:
    """NumPy's array interface, for elements of which only the size is known."""

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
    """Increase the version counters of tensors, which autograd compares; inference tensors have none."""
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
