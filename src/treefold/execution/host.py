"""Runs a plan whose devices all lie in host memory: every result is written in one pass over the inputs.

There is no tree: there are no links to spare on one memory, and folding every element once, in replica order,
is both the fastest and the most exact way. The plan proved who gets what; here each leaf's goal is met directly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from treefold.backends import HostArray
from treefold.backends.numpy_fold import scale_block
from treefold.errors import ArgumentError
from treefold.execution.callback import accumulate
from treefold.execution.kernel import Job, fold_batch
from treefold.execution.native import new_result
from treefold.execution.operands import Operand, Results
from treefold.fold import Fold
from treefold.plan import Plan
from treefold.plan.ir import Goal, Leaf, Role
from treefold.reduce_op import ReduceOp


def run(plan: Plan, inputs: Sequence[Operand], fold: Fold | None, out: Results | None) -> Results:
    """Return each leaf's result per component; with ``out``, written into the arrays given."""
    devices: list[list[str]] = [[] for _ in plan.leaves]
    for buffer in plan.buffers:
        if buffer.role is Role.OUTPUT:
            devices[buffer.leaf].append(buffer.device)
    # All memory is taken, and all callbacks run, before anything is written: a failure leaves out as it was.
    made = [_own_result(*each, fold) for each in zip(plan.leaves, plan.paths, inputs, strict=True)]
    targets = [
        [_view(operand, array) for array in out[index]]
        if out is not None
        else [
            new_result(operand.shape, _dtype(leaf, operand, fold, result)) for _ in _memories(operand, devices[index])
        ]
        for index, (leaf, operand, result) in enumerate(zip(plan.leaves, inputs, made, strict=True))
    ]
    # A view may be a copy, of a lazily conjugated tensor for instance: all are taken before anything is written.
    jobs = [
        Job(leaf.dtype, [_view(operand, array) for array in operand.arrays], ends)
        for leaf, operand, result, ends in zip(plan.leaves, inputs, made, targets, strict=True)
        if result is None
    ]
    if out is not None:
        for operand, arrays in zip(inputs, out, strict=True):
            operand.backend.wrote(arrays)
    for operand, result, ends in zip(inputs, made, targets, strict=True):
        if result is not None:
            for end in ends:
                end[...] = result.reshape(operand.shape)
    if jobs and fold is not None:
        fold_batch(jobs, fold)
    if out is not None:
        return out
    return [
        tuple(operand.backend.from_hosts(ends, names))
        for operand, ends, names in zip(inputs, targets, devices, strict=True)
    ]


def _memories(operand: Operand, devices: list[str]) -> list[str]:
    """Return the devices whose results need memory of their own."""
    return devices[:1] if operand.backend.shares_results else devices


def _own_result(leaf: Leaf, path: str, operand: Operand, fold: Fold | None) -> HostArray | None:
    """Return the result of a leaf that is not folded by the kernel, row-major; None for the others."""
    views = [_view(operand, array) for array in operand.arrays]
    if leaf.goal is Goal.FOLD:
        if fold is None or fold.accumulation_fn is None:
            return None
        arrays = [operand.backend.from_host(_read_only(view), "cpu:0") for view in views]
        return _view(operand, accumulate(operand.backend, arrays, fold, path)).copy()
    flat = np.concatenate([view.reshape(-1) for view in views])
    if leaf.goal is Goal.ROWS and fold is not None and fold.op is ReduceOp.MEAN:
        return scale_block(flat, len(views), operand.backend.result_dtype(fold, leaf.dtype))
    return flat


def _dtype(leaf: Leaf, operand: Operand, fold: Fold | None, result: HostArray | None) -> np.dtype[Any]:
    if result is not None:
        return result.dtype
    if fold is None:
        raise AssertionError(leaf)
    return np.dtype(operand.backend.result_dtype(fold, leaf.dtype))


def _view(operand: Operand, array: Any) -> HostArray:
    if not operand.backend.owns(array):  # planning takes whatever has a shape
        raise ArgumentError.not_a_value(array, "A replica")
    view = operand.backend.host_view(array)
    if view is None:
        raise AssertionError(operand)  # the planner chose the host executor, so all arrays are in host memory
    return view


def _read_only(view: HostArray) -> HostArray:
    view = view.view()
    view.flags.writeable = False
    return view
