"""Calls that the backend does not take, on all ranks or on rank 0 only."""

import contextlib
import warnings

import torch
from torch import distributed
from torch.distributed import ReduceOp
from torch.distributed.distributed_c10d import AllgatherOptions

from torch_ranks.zeros import zeros_without_memory
from treefold.errors import CallMismatchError, ProcessGroupError


def refused(rank, size, what):
    """A call that this backend does not take; then one that it takes, which shows that the group goes on."""
    try:
        _CALLS[what](rank, size)
    except Exception as error:  # noqa: BLE001 - returned
        caught = type(error).__name__, str(error)
    tensor = torch.full((1,), 2.0**rank)
    distributed.all_reduce(tensor)
    return *caught, tensor.item()


def _tensors(count):
    return [torch.zeros(4) for _ in range(count)]


def _sparse_on(rank):
    return torch.zeros(4) if rank else torch.zeros(4).to_sparse()


def _overlapping_on(rank):
    return torch.zeros(4) if rank else torch.zeros(1).expand(4)


def _windows_on(rank):
    return torch.zeros(4, 2) if rank else torch.zeros(5).as_strided((4, 2), (1, 1))


def _freed_on(rank):
    tensor = torch.zeros(4)
    if rank == 0:
        tensor.untyped_storage().resize_(0)
    return tensor


def _quantized_on(rank):
    tensor = torch.zeros(4)
    if rank == 0:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch is to drop them
            return torch.quantize_per_tensor(tensor, 0.5, 0, torch.quint8)
    return tensor


def _in_transform(transform, rank):
    """Make calls on rank 0 in a transform of torch.func, where other tensors stand for those that it has got."""

    def calls(tensor):
        for refused in (
            lambda: distributed.all_gather_into_tensor(torch.zeros(2 * tensor.numel()), tensor),
            lambda: distributed.all_reduce(tensor),
        ):
            with contextlib.suppress(ProcessGroupError, CallMismatchError):
                refused()
                raise AssertionError
        distributed.broadcast(tensor, 0)
        return tensor.sum()

    return transform(calls)(torch.zeros(4)) if rank == 0 else calls(torch.zeros(4))


def _vmap(call):
    return lambda tensor: torch.func.vmap(call)(tensor.expand(2, 4))


def _functionalize_view(call):
    return torch.func.functionalize(lambda tensor: call(torch.cat([tensor, tensor])[4:]))


_LARGE = torch.zeros(2000)
_INTEGERS = torch.zeros(2, dtype=torch.int32)
_CALLS = {
    "op": lambda *_: distributed.all_reduce(_INTEGERS, op=ReduceOp.BAND),
    "mean": lambda *_: distributed.all_reduce(_INTEGERS > 0, op=ReduceOp.AVG),
    "sum and mean": lambda rank, _: distributed.all_reduce(
        torch.zeros(4 - 2 * rank, dtype=torch.int64), op=ReduceOp.AVG if rank else ReduceOp.SUM
    ),
    "layout": lambda *_: distributed.all_reduce(torch.zeros(2).to_sparse()),
    "device": lambda *_: distributed.all_reduce(torch.zeros(2, device="meta")),
    "shape": lambda rank, _: distributed.all_reduce(torch.zeros(2 + rank)),
    "twice in parts": lambda *_: distributed.all_reduce_coalesced([_LARGE, _LARGE]),
    "more parts": lambda rank, _: distributed.all_reduce(torch.zeros(1008 if rank else 2016)),
    "more parts of rows": lambda rank, _: distributed.reduce_scatter_tensor(
        torch.zeros(336 if rank else 672), torch.zeros(672 if rank else 1344)
    ),
    "size": lambda rank, size: distributed.all_gather([torch.zeros(3)] * size, torch.zeros(3 if rank else 2)),
    "broadcast": lambda *_: distributed.broadcast(torch.zeros(4), 7),
    "reduce": lambda *_: distributed.reduce(torch.zeros(4), 7),
    "gather root": lambda *_: distributed.gather(torch.zeros(4), None, -2),
    "scatter root": lambda _, size: distributed.scatter(torch.zeros(4), None, size),
    "reduce_scatter list": lambda _, size: distributed.reduce_scatter(torch.zeros(4), _tensors(size + 1)),
    "scatter list": lambda rank, _: distributed.scatter(torch.zeros(4), None if rank else _tensors(3)),
    "gather list": lambda rank, _: distributed.gather(torch.zeros(4), None if rank else _tensors(1)),
    "all_gather list": lambda rank, size: distributed.all_gather(_tensors(size if rank else 3), torch.zeros(4)),
    "all_gather rows": lambda rank, size: distributed.group.WORLD.allgather_coalesced(
        [_tensors(1) for _ in range(size)], _tensors(1 if rank else 2), AllgatherOptions()
    ).wait(),
    "gathered layout": lambda rank, _: distributed.all_gather_into_tensor(_sparse_on(rank), torch.zeros(2)),
    "scattered layout": lambda rank, _: distributed.reduce_scatter_tensor(torch.zeros(2), _sparse_on(rank)),
    "exchanged layout": lambda rank, _: distributed.all_to_all_single(torch.zeros(4), _sparse_on(rank)),
    "overlapping": lambda rank, _: distributed.all_reduce(_overlapping_on(rank)),
    "overlapping copy": lambda rank, _: distributed.broadcast(_overlapping_on(rank), 1),
    "windows": lambda rank, _: distributed.all_reduce(_windows_on(rank)),
    "windows of parts": lambda rank, _: distributed.all_gather_into_tensor(_windows_on(rank), torch.zeros(4)),
    "windows of rows": lambda rank, _: distributed.all_to_all_single(_windows_on(rank), torch.zeros(4, 2)),
    "freed": lambda rank, _: distributed.broadcast(_freed_on(rank), 0),
    "zeros to write": lambda rank, _: distributed.broadcast(torch.zeros(4) if rank else zeros_without_memory(4), 1),
    "functionalize": lambda rank, _: _in_transform(torch.func.functionalize, rank),
    "functionalize, view": lambda rank, _: _in_transform(_functionalize_view, rank),
    "grad": lambda rank, _: _in_transform(torch.func.grad, rank),
    "vmap": lambda rank, _: _in_transform(_vmap, rank),
    "quantized": lambda rank, _: distributed.broadcast(_quantized_on(rank), 0),
}
