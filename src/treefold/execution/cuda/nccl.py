"""Runs a plan in one process, and lets NCCL all-reduce its packs, through PyTorch.

In the plan every device gets every contribution and folds them all. NCCL replaces both by one call per pack, with an
algorithm of its own. Packs that NCCL cannot reduce, or reduces to other results (its minimum of floats loses NaN), are
reduced as the plan has it.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
import torch.cuda.nccl

from treefold.devices import torch_device
from treefold.dtypes import COMPLEX, INTEGERS, REAL, WIDE_INTEGERS
from treefold.errors import GpuError
from treefold.execution.actions import LeafActions
from treefold.execution.interface import Operand, Results, handed_over
from treefold.execution.local import StepWalk
from treefold.fold import Fold
from treefold.keyed import grouped
from treefold.plan import Plan
from treefold.plan.ir import Action, Combine, Copy, Range, Role, Step
from treefold.reduce_op import ReduceOp

#: ncclRedOp_t. MEAN is a SUM that is divided afterwards, as everywhere.
_OPS = {ReduceOp.SUM: 0, ReduceOp.MEAN: 0, ReduceOp.PRODUCT: 1, ReduceOp.MAX: 2, ReduceOp.MIN: 3}
#: For dtypes that PyTorch does not pass to NCCL, dtypes that have the same sums and products modulo 2^w.
_SAME_SUMS = {"int16": "int32", "uint16": "int32", "uint32": "int32", "uint64": "int64"}
#: The same for maxima and minima.
_SAME_ORDER = {"int16": "int32", "uint16": "int32", "bool": "uint8"}
_POLL_S = 1e-3
# All devices must get NCCL's calls in the same order: interleaved calls of two threads wait for each other on the GPUs
# for ever. An RLock, because a signal handler that reduces may interrupt a thread within the lock; its call then is
# complete before or after this one.
_lock = threading.RLock()


def run(
    plan: Plan, inputs: Sequence[Operand], fold: Fold | None, out: Results | None, timeout_s: float | None = None
) -> Results:
    """Return each leaf's result per component, enqueued on the current streams; with ``out``, in the tensors given.

    Args:
        plan: The plan.
        inputs: The contributions to each leaf.
        fold: The arithmetic; None for plans that only move values.
        out: The tensors that take the results; None makes new ones.
        timeout_s: How long to wait for NCCL before anything is written into ``out``, in seconds; None does not wait.

    Raises:
        GpuError: NCCL reports an error, or is not done in time.

    """
    walk = _NcclWalk(plan, inputs, fold)
    for step in plan.steps:
        walk.take(step)
    results = walk.results()
    if timeout_s is not None:
        _wait(plan.devices, timeout_s)
    return handed_over(inputs, results, out)


def wire_dtype(fold: Fold, dtype: str) -> str | None:
    """Return the dtype in which NCCL folds contributions of ``dtype``; None if it would give other results.

    16-bit floats travel as float32 and are rounded once, unless ``accumulate="native"``.
    """
    is_extreme = fold.op in {ReduceOp.MIN, ReduceOp.MAX}
    if fold.weights is not None or fold.accumulation_fn is not None:
        return None
    if dtype in COMPLEX:
        return REAL[dtype] if fold.op in {ReduceOp.SUM, ReduceOp.MEAN} else None
    if is_extreme:
        # NCCL uses fmin and fmax, which prefer a number to NaN and take either zero for the other.
        return _SAME_ORDER.get(dtype, None if dtype in {"uint32", "uint64"} or dtype not in INTEGERS else dtype)
    if dtype in INTEGERS and fold.op is ReduceOp.MEAN:
        return None if dtype in WIDE_INTEGERS else "int64"  # 64 bits hold the sums of 32
    return _SAME_SUMS.get(dtype, fold.partial_dtype(dtype))


class _NcclWalk(StepWalk):
    """A walk through a plan that leaves packs to NCCL if NCCL can reduce them."""

    def __init__(self, plan: Plan, inputs: Sequence[Operand], fold: Fold | None) -> None:
        """Find the packs that NCCL can reduce, and the buffers that copies from other devices fill."""
        super().__init__(plan, inputs, fold)
        actions = [action for step in plan.steps for action in step.actions]
        # NCCL moves contributions itself, so copies to other devices are left out: each device sends its own.
        self.brought = {action.target.buffer for action in actions if self._crosses(action)}
        folds = grouped((action.pack, action) for action in actions if isinstance(action, Combine))
        wires = {pack: self._wire(parts) for pack, parts in folds.items()}
        self.wires = {pack: wire for pack, wire in wires.items() if wire is not None}

    def take(self, step: Step) -> None:
        """Do the actions of one step, which has either all folds of a pack or none."""
        mine, others = defaultdict[int, list[Combine]](list), list[Action]()
        for action in step.actions:
            if action.pack not in self.wires:
                others.append(action)
            elif isinstance(action, Combine):
                mine[action.pack].append(action)
            elif not self._crosses(action):
                others.append(action)
        # Evaluate all actions before any result is written: actions of a step may run in any order.
        written = [(action.target, self.evaluate(action)) for action in others]
        for folds in mine.values():
            written += self._all_reduce(folds)
        for target, array in written:
            self.write(target, array)

    def _crosses(self, action: Action) -> bool:
        """Return whether an action copies to another device."""
        buffers = self.plan.buffers
        return isinstance(action, Copy) and buffers[action.source.buffer].device != buffers[action.target.buffer].device

    def _wire(self, folds: Sequence[Combine]) -> str | None:
        """Return a pack's dtype in NCCL, or None unless every device folds all contributions, one of them its own."""
        leaf = self.plan.leaves[self.plan.buffers[folds[0].target.buffer].leaf]
        is_everywhere = len(folds) == len(folds[0].sources) and all(len(self._own(fold)) == 1 for fold in folds)
        return wire_dtype(self.fold, leaf.dtype) if is_everywhere and self.fold is not None else None

    def _own(self, fold: Combine) -> list[Range]:
        """Return the sources of a fold that no other device sends to its device."""
        return [source for source in fold.sources if source.buffer not in self.brought]

    def _all_reduce(self, folds: Sequence[Combine]) -> list[tuple[Range, Any]]:
        """Return the result of each device's fold of a pack, made by one call of NCCL."""
        if self.fold is None:
            raise AssertionError(folds)
        leaf = self.leaves[self.plan.buffers[folds[0].target.buffer].leaf]
        wire = getattr(torch, self.wires[folds[0].pack])
        # Temporaries belong to each device's current stream, which NCCL uses, too: their memory is reused only after
        # its call.
        sent = [_as_wire(self.read(self._own(fold)[0]), wire) for fold in folds]
        # Not in place: a contribution may be the caller's own tensor, and a plan never writes an input.
        received = [torch.empty_like(tensor) for tensor in sent]
        devices = tuple(self.plan.buffers[fold.target.buffer].device for fold in folds)
        _call(sent, received, _OPS[self.fold.op], devices)
        return [(fold.target, self._finished(total, leaf)) for fold, total in zip(folds, received, strict=True)]

    def _finished(self, total: Any, leaf: LeafActions) -> Any:
        """Return a total of NCCL as the leaf's result: divided for a MEAN, and rounded once."""
        if leaf.leaf.dtype in COMPLEX:
            total = torch.view_as_complex(total.reshape(-1, 2))
        is_mean = self.fold is not None and self.fold.op is ReduceOp.MEAN
        return leaf.mean(total) if is_mean else _as_bits(total, getattr(torch, leaf.dtype(Role.OUTPUT)))


def _as_wire(tensor: Any, dtype: Any) -> Any:
    """Return a contribution in NCCL's dtype, contiguous."""
    plain = tensor.detach().resolve_conj().resolve_neg()
    plain = torch.view_as_real(plain).reshape(-1) if plain.is_complex() else plain
    return _as_bits(plain, dtype).contiguous()


def _as_bits(tensor: Any, dtype: Any) -> Any:
    """Return a tensor in another dtype: integers of the same width keep their bits, others their values."""
    if tensor.dtype.itemsize == dtype.itemsize and not (tensor.is_floating_point() or tensor.is_complex()):
        return tensor.view(dtype)
    return tensor.to(dtype)


def _call(sent: list[Any], received: list[Any], op: int, devices: tuple[str, ...]) -> None:
    """Enqueue NCCL's all-reduce.

    Raises:
        GpuError: NCCL reports an error.

    """
    try:
        with _lock:
            torch.cuda.nccl.all_reduce(sent, received, op=op)
    except RuntimeError as error:
        raise GpuError(
            f"NCCL could not all-reduce between {', '.join(devices)} ({str(error).strip().splitlines()[0]}). Set "
            "NCCL_DEBUG=INFO to see why; HierarchicalCopyAllReduce does without NCCL."
        ) from error


def _wait(devices: tuple[str, ...], timeout_s: float) -> None:
    """Return when the current streams of all devices are done.

    Raises:
        GpuError: They are not done in time.

    """
    events = [torch.cuda.current_stream(torch_device(device)).record_event() for device in devices]
    end = time.monotonic() + timeout_s
    # Polled, because waiting for an event takes no deadline, and a GPU that hangs would hold this process for ever.
    while not all(event.query() for event in events):
        if time.monotonic() > end:
            raise GpuError(
                f"NCCL is not done after {timeout_s:g} s between {', '.join(devices)}, and what these GPUs were given "
                "next waits for it. End this process; set NCCL_DEBUG=INFO to see what it waited for."
            )
        time.sleep(_POLL_S)
