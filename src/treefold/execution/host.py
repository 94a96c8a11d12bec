"""Runs a plan whose devices all lie in host memory: every result is written in one pass over the inputs.

There is no tree: there are no links to spare on one memory, and folding every element once, in replica order,
is both the fastest and the most exact. The plan proved who gets what; here each leaf's goal is met directly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from treefold.backends import HostArray
from treefold.backends.numpy import NumpyBackend
from treefold.errors import ArgumentError
from treefold.execution.actions import LeafActions, leaf_actions
from treefold.execution.interface import CallSummary, Executor
from treefold.execution.kernel import KERNEL, Job, fold_batch
from treefold.execution.native import new_result
from treefold.execution.operands import Operand, Results
from treefold.fold import Fold
from treefold.plan import Plan
from treefold.plan.actions import buffers_of_leaves
from treefold.plan.ir import Goal, Role

_NUMPY = NumpyBackend()


class HostExecutor(Executor):
    """Host memory: one pass of the native core, or NumPy, over the arrays where they lie."""

    name = "host"
    shares_memory = True
    most_devices_in_one_pass = math.inf
    kernel = KERNEL

    def refusal(self, call: CallSummary) -> str:
        """Refuse what lies on other memory."""
        return "" if call.is_in_host_memory else "its arrays or devices are not all in host memory"

    def run(self, plan: Plan, inputs: Sequence[Operand], fold: Fold | None, out: Results | None) -> Results:
        """Return each leaf's result per component; with ``out``, written into the arrays given."""
        leaves = leaf_actions(plan, inputs, fold)
        devices = [
            [plan.buffers[index].device for index in indices] for indices in buffers_of_leaves(plan, Role.OUTPUT)
        ]
        # All memory is taken, and all callbacks run, before anything is written: a failure leaves out as it was.
        made = [_own_result(leaf, operand) for leaf, operand in zip(leaves, inputs, strict=True)]
        targets = [
            [_view(operand, array) for array in out[index]]
            if out is not None
            else [
                new_result(operand.shape, np.dtype(leaf.dtype(Role.OUTPUT)) if result is None else result.dtype)
                for _ in (devices[index][:1] if operand.backend.shares_results else devices[index])
            ]
            for index, (leaf, operand, result) in enumerate(zip(leaves, inputs, made, strict=True))
        ]
        # A view may be a copy, of a lazily conjugated tensor for instance: all are taken before anything is written.
        jobs = [
            Job(leaf.leaf.dtype, [_view(operand, array) for array in operand.arrays], ends)
            for leaf, operand, result, ends in zip(leaves, inputs, made, targets, strict=True)
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


def _own_result(leaf: LeafActions, operand: Operand) -> HostArray | None:
    """Return the result of a leaf that is not folded by the kernel, row-major; None for the others."""
    views = [_view(operand, array) for array in operand.arrays]
    if leaf.leaf.goal is not Goal.FOLD:
        result: HostArray = leaf._replace(backend=_NUMPY).result(views)
        return result
    if leaf.fold is None or leaf.fold.accumulation_fn is None:
        return None
    arrays = [operand.backend.from_host(_read_only(view), "cpu:0") for view in views]
    # A copy: what the function returns may be an input, which is written before all outputs are.
    return _view(operand, leaf.result(arrays)).copy()


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
