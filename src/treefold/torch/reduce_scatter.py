"""``exact_reduce_scatter``: PyTorch's reduce-scatter, over any process group, with exact sums."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import distributed

import treefold
from treefold.backends.tracing import untraced
from treefold.errors import ArgumentError
from treefold.errors.words import short
from treefold.reduce_op import ReduceOp

_OPS = {distributed.ReduceOp.SUM: ReduceOp.SUM, distributed.ReduceOp.AVG: ReduceOp.MEAN}


@untraced
class _ScatterWork(distributed.Work):  # type: ignore[misc] # mypy does not read torch
    """An exchange under way; ``wait`` adds up its parts."""

    def __init__(self, exchange: Any, parts: Sequence[torch.Tensor], output: torch.Tensor, op: ReduceOp) -> None:
        super().__init__()
        self._exchange, self._parts, self._output, self._op = exchange, parts, output, op

    def wait(self, timeout: timedelta | None = None) -> bool:
        if self._parts:
            self._exchange.wait(*[] if timeout is None else [timeout])
            self._output.copy_(treefold.reduce([*self._parts], self._op))
            self._parts = []
        return True

    def is_completed(self) -> bool:
        return not self._parts


def exact_reduce_scatter(
    output: torch.Tensor,
    input: torch.Tensor,  # noqa: A002 - PyTorch's name
    op: Any = distributed.ReduceOp.SUM,
    group: distributed.ProcessGroup | None = None,
    async_op: bool = False,  # noqa: FBT001, FBT002 - PyTorch's signature
) -> distributed.Work | None:
    """Add up what all ranks have for each of them: the exact value, rounded once; AVG divides before it rounds.

    Contributions travel by ``all_to_all_single`` of the group that there is (gloo, NCCL, ...), as many bytes as a ring
    sends, and are added where the tensors lie. The call needs memory for a second ``input``.

    Source: ``torch.distributed.reduce_scatter_tensor``.

    Args:
        output: A contiguous tensor that takes this rank's part of the sum.
        input: A contiguous tensor of the same dtype, with as many elements as ``output`` for each rank, in order of
            ranks. It stays as it is.
        op: ``ReduceOp.SUM`` or ``AVG``.
        group: The ranks, of any backend; all of them call. None: all ranks of the job.
        async_op: Return at once; ``wait()`` of the result adds up. Call it before ``output`` is used.

    Returns:
        The ``Work`` of the call with ``async_op``, else None.

    Raises:
        ArgumentError: Tensors that do not go together, or another op. Nothing was sent.

    """
    size = distributed.get_world_size(group)
    if op not in _OPS:
        raise ArgumentError(f"exact_reduce_scatter got op={short(op)}. It takes ReduceOp.SUM and ReduceOp.AVG.")
    if input.dtype != output.dtype or input.numel() != size * output.numel() or input.device != output.device:
        raise ArgumentError(
            f"exact_reduce_scatter got an input of {input.numel()} elements of {input.dtype} on {input.device}, and "
            f"an output of {output.numel()} of {output.dtype} on {output.device}, for {size} ranks. Bring as many "
            "elements for each rank as the output has, of one dtype on one device."
        )
    if not (input.is_contiguous() and output.is_contiguous()):
        raise ArgumentError("exact_reduce_scatter got a tensor that is not contiguous. Pass contiguous tensors.")
    received = torch.empty_like(input)
    exchange = distributed.all_to_all_single(received.view(-1), input.view(-1), group=group, async_op=True)
    work = _ScatterWork(exchange, received.view(size, *output.shape).unbind(), output, _OPS[op])
    if async_op:
        return work
    work.wait()
    return None
