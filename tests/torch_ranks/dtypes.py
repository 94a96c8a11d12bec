"""Every collective with tensors of one dtype, blocks of memory on rank 0, with gaps on the others.

Messages are gloo's, which takes blocks only.
"""

import torch
from torch import distributed

_ROWS = 8
#: Whole in every dtype: a bool is 0 or 1.
_BYTE = 1


def of_every_dtype(rank, size):
    """Return, for each dtype and call, the beginning of what was raised, or whether all was written that should be."""
    dtypes = {str(one): one for one in vars(torch).values() if isinstance(one, torch.dtype)}
    return {
        (name, call): _outcome(body, rank, size, dtype)
        for name, dtype in dtypes.items()
        if not name.startswith(("torch.q", "torch.uq"))  # quantized ones are no dtypes of plain tensors
        for call, body in _CALLS.items()
    }


def _outcome(body, rank, size, dtype):
    try:
        written = body(lambda byte, count=1: _tensor(rank, dtype, byte, count), rank, size)
    except Exception as error:  # noqa: BLE001 - returned
        return str(error)
    return all(bool((one.view(torch.uint8) == _BYTE).all()) for one in written)


def _tensor(rank, dtype, byte, count):
    """Return a tensor with that byte everywhere; on rank 1 the first half of every row of another one."""
    rows = torch.full((_ROWS * count, 4 * dtype.itemsize), byte, dtype=torch.uint8).view(dtype)
    return rows[:, :2] if rank else rows[: _ROWS * count // 2]


def _reduce_op(call):
    def body(new, rank, size):
        tensor = new(_BYTE)
        call(tensor)
        return [tensor]

    return body


def _broadcast(new, rank, size):
    tensor = new(0 if rank else _BYTE)
    distributed.broadcast(tensor, 0)
    return [tensor]


def _all_gather(new, rank, size):
    ends = [new(0) for _ in range(size)]
    distributed.all_gather(ends, new(_BYTE))
    return ends


def _all_gather_single(new, rank, size):
    end = new(0, size)
    distributed.all_gather_into_tensor(end, new(_BYTE))
    return [end]


def _gather(new, rank, size):
    ends = [new(0) for _ in range(size)] if rank == 1 else None
    distributed.gather(new(_BYTE), ends, 1)
    return ends or []


def _scatter(new, rank, size):
    end = new(0)
    distributed.scatter(end, None if rank else [new(_BYTE) for _ in range(size)], 0)
    return [end]


def _all_to_all(new, rank, size):
    ends = [new(0) for _ in range(size)]
    distributed.all_to_all(ends, [new(_BYTE) for _ in range(size)])
    return ends


def _all_to_all_single(new, rank, size):
    end = new(0, size)
    distributed.all_to_all_single(end, new(_BYTE, size))
    return [end]


def _reduce_scatter(new, rank, size):
    end = new(0)
    distributed.reduce_scatter_tensor(end, new(_BYTE, size), distributed.ReduceOp.MAX)
    return [end]


_CALLS = {
    "all_reduce": _reduce_op(lambda tensor: distributed.all_reduce(tensor, distributed.ReduceOp.MAX)),
    "reduce": _reduce_op(lambda tensor: distributed.reduce(tensor, 1, distributed.ReduceOp.MIN)),
    "reduce_scatter": _reduce_scatter,
    "broadcast": _broadcast,
    "all_gather": _all_gather,
    "all_gather_single": _all_gather_single,
    "gather": _gather,
    "scatter": _scatter,
    "all_to_all": _all_to_all,
    "all_to_all_single": _all_to_all_single,
}
