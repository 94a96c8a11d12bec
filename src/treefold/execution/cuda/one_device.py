"""Runs a plan whose arrays all lie on one GPU: every result is written in one pass over the contributions.

As on host memory, there is no tree: there are no links to spare on one memory. The backend's operations fold what
the kernel does not support (weights, callbacks, complex products, a missing Triton), with the same result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from treefold.execution.actions import LeafActions, leaf_actions
from treefold.execution.cuda.fused import DeviceJob, fold_batch, is_fused
from treefold.execution.operands import Operand, Results
from treefold.fold import Fold
from treefold.plan import Plan
from treefold.plan.actions import buffers_of_leaves
from treefold.plan.ir import Goal, Role

_ROWS = torch.contiguous_format


def run(plan: Plan, inputs: Sequence[Operand], fold: Fold | None, out: Results | None) -> Results:
    """Return each leaf's result per component, enqueued on the current stream; with ``out``, in the tensors given."""
    # Allocate all memory and run all callbacks before anything is written: a failure leaves ``out`` unchanged.
    made: Results = []
    jobs: list[DeviceJob] = []
    copies: list[tuple[Any, Any]] = []
    counts = [len(outputs) for outputs in buffers_of_leaves(plan, Role.OUTPUT)]
    for index, (leaf, operand) in enumerate(zip(leaf_actions(plan, inputs, fold), inputs, strict=True)):
        given = None if out is None else out[index]
        if leaf.leaf.goal is Goal.FOLD and fold is not None and is_fused(fold, leaf.leaf.dtype):
            job = _job(leaf, operand, counts[index], given)
            jobs.append(job)
            made.append(tuple(job.targets))
            # The kernel writes row-major memory; other targets get a copy behind it, on the same stream.
            copies += [(end, part) for end, part in zip(given or (), job.targets, strict=False) if end is not part]
        else:
            result = _result(leaf, operand)
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


def _job(leaf: LeafActions, operand: Operand, count: int, given: tuple[Any, ...] | None) -> DeviceJob:
    """Return the work for the kernel, row-major all of it."""
    # Copies that this makes are dropped on return, while the kernel may still read them: they are of the current
    # stream, like the kernel, and PyTorch reuses memory in the order of its stream.
    sources = [array.detach().resolve_conj().resolve_neg().contiguous() for array in operand.arrays]
    if given is not None:
        targets = [end if end.is_contiguous() else torch.empty_like(end, memory_format=_ROWS) for end in given]
    else:
        dtype = getattr(torch, leaf.dtype(Role.OUTPUT))
        targets = [torch.empty(operand.shape, dtype=dtype, device=sources[0].device) for _ in range(count)]
    return DeviceJob(leaf.leaf.dtype, sources, targets)


def _result(leaf: LeafActions, operand: Operand) -> Any:
    """Return a result made by the backend's own operations; it may be a view of a contribution."""
    arrays = operand.arrays
    if leaf.fold is not None and leaf.fold.accumulation_fn is not None:  # which may write into what it gets
        device = leaf.backend.device_of(arrays[0]) or "cpu:0"
        arrays = tuple([leaf.backend.copy_to(array, device) for array in arrays])
    flat = [leaf.backend.ravel_concat([array]) for array in arrays]
    return leaf.backend.reshape(leaf.result(flat), operand.shape)
