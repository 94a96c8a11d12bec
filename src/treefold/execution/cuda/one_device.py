"""Runs a plan whose arrays all lie on one GPU: every result is written in one pass over the contributions.

As on host memory, there is no tree: there are no links to spare on one memory. What no kernel folds (weights,
callbacks, complex products, a missing Triton) is folded by the backend's operations, with the same result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from treefold.execution.callback import accumulate
from treefold.execution.cuda.fused import DeviceJob, fold_batch, is_fused
from treefold.execution.operands import Operand, Results
from treefold.fold import Fold
from treefold.plan import Plan
from treefold.plan.ir import Goal, Leaf, Role
from treefold.reduce_op import ReduceOp


def run(plan: Plan, inputs: Sequence[Operand], fold: Fold | None, out: Results | None) -> Results:
    """Return each leaf's result per component, enqueued on the current stream; with ``out``, in the tensors given."""
    counts = [0] * len(plan.leaves)
    for buffer in plan.buffers:
        counts[buffer.leaf] += buffer.role is Role.OUTPUT
    # All memory is taken, and all callbacks run, before anything is written: a failure leaves out as it was.
    made: Results = []
    jobs: list[DeviceJob] = []
    copies: list[tuple[Any, Any]] = []
    for index, (leaf, operand) in enumerate(zip(plan.leaves, inputs, strict=True)):
        given = None if out is None else out[index]
        if leaf.goal is Goal.FOLD and fold is not None and is_fused(fold, leaf.dtype):
            job = _job(leaf, operand, fold, counts[index], given)
            jobs.append(job)
            made.append(tuple(job.targets))
            copies += [(end, part) for end, part in zip(given or (), job.targets, strict=False) if end is not part]
        else:
            result = _made(leaf, plan.paths[index], operand, fold)
            if given is None:
                device = operand.backend.device_of(result) or "cpu:0"
                made.append(tuple(operand.backend.copy_to(result, device) for _ in range(counts[index])))
            else:
                copies += [(end, result) for end in given]
    with torch.no_grad():
        if jobs and fold is not None:
            fold_batch(jobs, fold)
        for target, source in copies:
            target.detach().copy_(source)
    if out is None:
        return made
    for operand, arrays in zip(inputs, out, strict=True):
        operand.backend.wrote(arrays)
    return out


def _job(leaf: Leaf, operand: Operand, fold: Fold, count: int, given: tuple[Any, ...] | None) -> DeviceJob:
    """Return the work for the kernel, row-major all of it."""
    sources = [array.detach().resolve_conj().resolve_neg().contiguous() for array in operand.arrays]
    if given is not None:
        targets = [end if end.is_contiguous() else torch.empty_like(end, memory_format=_ROWS) for end in given]
    else:
        dtype = getattr(torch, fold.result_dtype(leaf.dtype))
        targets = [torch.empty(operand.shape, dtype=dtype, device=sources[0].device) for _ in range(count)]
    return DeviceJob(leaf.dtype, sources, targets)


_ROWS = torch.contiguous_format


def _made(leaf: Leaf, path: str, operand: Operand, fold: Fold | None) -> Any:
    """Return a result made by the backend's own operations; it may be a view of a contribution."""
    backend = operand.backend
    if leaf.goal is Goal.FOLD and fold is not None and fold.accumulation_fn is not None:
        device = backend.device_of(operand.arrays[0]) or "cpu:0"
        arrays = [backend.copy_to(array, device) for array in operand.arrays]
        return backend.reshape(accumulate(backend, arrays, fold, path), operand.shape)
    flat = [backend.ravel_concat([array]) for array in operand.arrays]
    if leaf.goal is Goal.FOLD and fold is not None:
        dtype = fold.result_dtype(leaf.dtype)
        result = backend.combine(flat, fold, dtype=leaf.dtype, divisor=len(flat), result=dtype)
    else:
        result = backend.ravel_concat(flat)
        if leaf.goal is Goal.ROWS and fold is not None and fold.op is ReduceOp.MEAN:
            result = backend.scale(result, len(flat), fold.result_dtype(leaf.dtype))
    return backend.reshape(result, operand.shape)
