"""Flat memory of a collective's tensors: their own if they are row-major, else copies that are written back.

The module also checks a collective's op, root, and numbers and sizes of tensors.
"""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import distributed

from treefold.backends import HostArray
from treefold.backends.torch_memory import count_writes
from treefold.errors import DeviceError, ProcessGroupError
from treefold.errors.words import counted, listed, short
from treefold.group.transport.link import Piece

_WITHOUT_COPIES = {getattr(torch, f"{sign}int{bits}", None) for sign in ("", "u") for bits in range(1, 8)}


_PLAIN = {torch.Tensor, torch.nn.Parameter}


class Flat:
    """The tensors of one call, read and written as flat tensors."""

    def __init__(self) -> None:
        """Begin without tensors."""
        self._written: list[Any] = []
        self._copied: list[tuple[Any, Any]] = []

    def source(self, tensor: Any) -> Any:
        """Return a flat tensor with the contents of a tensor, to read.

        Raises:
            DeviceError: It is not in host memory.
            ProcessGroupError: It is sparse, or its storage was freed.

        """
        tensor = in_memory(tensor)
        whole = _copyable(tensor.detach().resolve_conj().resolve_neg()).contiguous()
        return whole.view(tensor.dtype).view(-1)

    def target(self, tensor: Any, *, keeps: bool = False) -> Any:
        """Return a flat tensor to write, with the tensor's contents if ``keeps``; ``finish`` writes it back.

        Raises:
            DeviceError: It is not in host memory.
            ProcessGroupError: It is sparse, its storage was freed, or some of its elements may share memory.

        """
        tensor = check_written(tensor)
        if tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg():
            self._written.append(tensor)
            return tensor.detach().view(-1)
        copy = self.source(tensor) if keeps else torch.empty(tensor.numel(), dtype=tensor.dtype, device="cpu")
        self._copied.append((tensor, copy))
        return copy

    def finish(self) -> None:
        """Write all copies back, even if a signal interrupts, and let autograd know what was written."""
        try:
            self._write()
        except Exception:
            raise
        except BaseException:
            self._write()
            raise

    def _write(self) -> None:
        for tensor, copy in self._copied:
            in_memory(tensor)  # the program may have freed its storage since the call began
            # Inference tensors can only be written in that mode.
            with torch.no_grad(), torch.inference_mode(tensor.is_inference()):
                _copyable(tensor.detach()).copy_(_copyable(copy).view(tensor.shape))
        if self._written:
            count_writes(self._written)


def _copyable(tensor: Any) -> Any:
    """Return a tensor, viewed as bytes if PyTorch cannot copy its dtype: ``uint4`` and such, one byte per element."""
    return tensor.view(torch.uint8) if tensor.dtype in _WITHOUT_COPIES else tensor


def piece(at: int, flat: Any) -> Piece:
    """Return a flat tensor as a piece of a stream."""
    return at, flat.data_ptr(), flat.nbytes


def read_only(array: HostArray, dtype: Any) -> Any:
    """Return a flat tensor on an array that must not be written; PyTorch cannot mark it read-only."""
    holder: Any = (ctypes.c_char * array.nbytes).from_address(array.__array_interface__["data"][0])
    holder.owner = array  # the tensor keeps its buffer alive, and that the array
    return torch.frombuffer(holder, dtype=dtype)


def parts(tensor: Any, size: int) -> list[Any]:
    """Return views of consecutive parts of a tensor, one for each rank.

    Raises:
        DeviceError: The tensor is not in host memory.
        ProcessGroupError: It is sparse.

    """
    tensor = in_memory(tensor)
    return list((tensor.view(-1) if tensor.is_contiguous() else tensor).tensor_split(size))


def rows(tensor: Any, size: int, lengths: Sequence[int] | None) -> list[Any]:
    """Return rows of a tensor for each rank: ``lengths`` of them, or equally many.

    Raises:
        DeviceError: The tensor is not in host memory.
        ProcessGroupError: It is sparse.

    """
    tensor = in_memory(tensor)
    return list(tensor.split(list(lengths)) if lengths else tensor.tensor_split(size))


def check_written(tensor: Any) -> Any:
    """Return a tensor that is to be written, if each of its elements has memory of its own.

    Raises:
        DeviceError: It is not in host memory.
        ProcessGroupError: It is sparse, has no memory, its storage was freed, or some of its elements may share memory.

    """
    if tensor._is_zerotensor():  # noqa: SLF001 - PyTorch has no public name for it
        raise ProcessGroupError.no_memory()
    tensor = in_memory(tensor)
    steps = sorted((stride, length) for length, stride in zip(tensor.shape, tensor.stride(), strict=True) if length > 1)
    last, is_nested = 0, True
    for stride, length in steps:
        is_nested &= stride > last  # one step along this dimension passes everything that the smaller ones reach
        last += (length - 1) * stride
    if tensor.numel() and not is_nested:
        raise ProcessGroupError(
            f"A tensor of shape {tuple(tensor.shape)} and strides {tuple(tensor.stride())} is to be written, and "
            "several of its elements may be one place in memory. Give a copy: tensor.clone()."
        )
    return tensor


def in_memory(tensor: Any) -> Any:
    """Return a tensor with all elements in host memory: this one, the one behind a subclass, or a copy of zeros.

    Raises:
        DeviceError: It is on a device.
        ProcessGroupError: It is quantized, sparse, consists of other tensors, or its storage has no memory or is
            smaller than the tensor.

    """
    tensor = _plain(tensor)
    if tensor.is_quantized:  # its scale would stay behind
        raise ProcessGroupError(
            f"A quantized tensor ({tensor.dtype!s}) has a scale beside its numbers. Give the numbers, "
            "tensor.int_repr(), and the scale as tensors of their own."
        )
    if tensor.layout is not torch.strided:
        raise ProcessGroupError(
            f'PyTorch\'s backend "treefold" got a {str(tensor.layout).removeprefix("torch.")} tensor. It takes dense '
            "tensors: give tensor.to_dense(), or "
            "let the module make dense gradients, as torch.nn.Embedding does with sparse=False."
        )
    if tensor.device.type != "cpu":
        raise DeviceError(
            f'PyTorch\'s backend "treefold" got a tensor on {tensor.device!s}. It takes tensors on the CPU; '
            'copy it there, or name a backend for GPUs, too: init_process_group("cpu:treefold,cuda:nccl").'
        )
    if tensor._is_zerotensor():  # noqa: SLF001 - PyTorch has no public name for it
        return tensor.clone()
    try:
        storage = tensor.untyped_storage()
        storage.data_ptr()  # raises where PyTorch has allocated nothing for the bytes
    except RuntimeError as error:
        raise ProcessGroupError.no_memory() from error
    if tensor.numel():
        steps = zip(tensor.shape, tensor.stride(), strict=True)
        extent = tensor.storage_offset() + 1 + sum((length - 1) * stride for length, stride in steps)
        needed, nbytes = extent * tensor.itemsize, storage.nbytes()
        if needed > nbytes:
            raise ProcessGroupError(
                f"A tensor needs {counted(needed, 'byte')} of its storage, which has {counted(nbytes, 'byte')}. Give "
                "the storage its size back (untyped_storage().resize_) before the call."
            )
    return tensor


def _plain(tensor: Any) -> Any:
    """Return a tensor of PyTorch's own class, on the memory of a subclass's tensor."""
    kind = type(tensor)
    if kind in _PLAIN:
        return tensor
    if hasattr(kind, "trigger_wait"):  # the result of a functional collective, perhaps still under way
        return tensor.trigger_wait()
    if kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:  # what it says of its memory need not be true
        raise ProcessGroupError(
            f"A {kind.__name__} is made of other tensors, which a collective does not see. Give these: of a DTensor, "
            "tensor.to_local() or tensor.full_tensor()."
        )
    return tensor.as_subclass(torch.Tensor)


_Op = distributed.ReduceOp
_OPS = {_Op.SUM: "sum", _Op.AVG: "mean", _Op.MIN: "min", _Op.MAX: "max", _Op.PRODUCT: "product"}
#: The ops of bools, as in gloo and NCCL: SUM is "or", PRODUCT is "and".
_OPS_OF_BOOLS = _OPS | {_Op.SUM: "max", _Op.PRODUCT: "min"}
_WHOLE = {getattr(torch, f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)}
#: The op of means that are written as whole numbers.
WHOLE_MEAN = "mean of whole numbers"


def op_of(opts: Any, tensors: Sequence[Any]) -> str:
    """Return treefold's name of an op; ``WHOLE_MEAN`` for AVG of whole numbers.

    Raises:
        ProcessGroupError: treefold has no such op, or not for these tensors.

    """
    op = opts.reduceOp.op
    if op not in _OPS:
        raise ProcessGroupError.op(op.name, [known.name for known in _OPS])
    dtypes = {tensor.dtype for tensor in tensors}
    others = {dtype for dtype in dtypes if not (dtype.is_floating_point or dtype.is_complex)}
    if op == _Op.AVG and others:
        if not dtypes <= _WHOLE:
            raise ProcessGroupError.mean(sorted(map(str, dtypes)))
        return WHOLE_MEAN
    return (_OPS_OF_BOOLS if dtypes == {torch.bool} else _OPS)[op]


def check_rank(rank: object, size: int) -> int:
    """Return a root as Python's integer; it may be a whole number of NumPy or PyTorch.

    Raises:
        ProcessGroupError: It is none of ``size`` ranks.

    """
    try:
        number = operator.index(rank)  # type: ignore[arg-type] # what is none raises
    except TypeError:
        number = -1
    if not 0 <= number < size:
        raise ProcessGroupError(
            f"Got rank {short(rank)} of a group of {counted(size, 'rank')}. Give a src or dst of 0 to {size - 1}."
        )
    return number


def check_count(collective: str, tensors: Sequence[Any], size: int) -> None:
    """Refuse a list that does not have one tensor for each rank.

    Raises:
        ProcessGroupError: It has more or fewer than ``size``.

    """
    if len(tensors) != size:
        raise ProcessGroupError(
            f"{collective} got a list of {counted(len(tensors), 'tensor')} in a group of {counted(size, 'rank')}. The "
            "list has one tensor for each rank, in order of ranks."
        )


def check_sizes(collective: str, given: Sequence[Any], expected: Sequence[Any]) -> None:
    """Refuse flat tensors that differ in size or dtype from those they belong to.

    Raises:
        ProcessGroupError: Its message shows both.

    """
    found, wanted = [_form(one) for one in given], [_form(one) for one in expected]
    if found != wanted:
        raise ProcessGroupError(
            f"{collective} got a tensor of {listed(found, quote=False) or 'nothing'}, where one of "
            f"{listed(wanted, quote=False) or 'nothing'} belongs. Ranks bring and take tensors of one size and dtype."
        )


def columns(collective: str, rows: Sequence[Sequence[Any]], count: int) -> list[list[Any]]:
    """Return, for each of ``count`` tensors, its entry of every row.

    Raises:
        ProcessGroupError: A row has more or fewer entries.

    """
    for row in rows:
        if len(row) != count:
            raise ProcessGroupError(
                f"{collective} got a list of {counted(len(row), 'output')} for a rank, and {counted(count, 'input')}. "
                "Every rank's list has one output for each input."
            )
    return [list(column) for column in zip(*rows, strict=True)]


def words(flats: Sequence[Any]) -> str:
    """Return the sizes and dtypes of flat tensors in words."""
    return ", ".join(map(_form, flats))


def _form(flat: Any) -> str:
    return f"{flat.numel()} {str(flat.dtype).removeprefix('torch.')}"
