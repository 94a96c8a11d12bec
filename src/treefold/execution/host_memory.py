"""Runs a plan with all devices in host memory: every result is written in one pass over the inputs.

One memory has no links to spare, so there is no tree: to fold every element once, in replica order, is both the fastest
and the most exact. The plan has proved which result each destination gets; this module computes each result directly,
by the goal of its leaf.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from treefold.backends import ArrayBackend, HostArray, Row
from treefold.backends.numpy import NumpyBackend
from treefold.execution import native
from treefold.execution.actions import LeafActions, leaf_actions
from treefold.execution.host_fold import UNFINISHED, Job, fold_batch
from treefold.execution.interface import CallSummary, Executor, Operand, Repeat, Results
from treefold.execution.native import new_result
from treefold.fold import Fold
from treefold.plan import Plan
from treefold.plan.actions import buffers_of_leaves
from treefold.plan.ir import Goal, Role

_NUMPY = NumpyBackend()


class HostExecutor(Executor):
    """Folds in host memory: one pass of the native core, or NumPy, over the arrays in place."""

    name = "host"

    @property
    def kernel(self) -> str:
        """The native core and its proof of exact sums, or NumPy."""
        return native.kernel()

    def refusal(self, call: CallSummary) -> str:
        """Refuse arrays or devices in any other memory."""
        return "" if call.is_in_host_memory else "its arrays or devices are not all in host memory"

    def run(self, plan: Plan, inputs: Sequence[Operand], fold: Fold | None, out: Results | None) -> Results:
        """Return each leaf's result per component; with ``out``, written into the arrays given."""
        leaves = leaf_actions(plan, inputs, fold)
        devices = output_devices(plan)
        # Allocate all memory and run all callbacks before anything is written: a failure leaves ``out`` unchanged.
        made = [_own_result(leaf, operand) for leaf, operand in zip(leaves, inputs, strict=True)]
        targets = [
            _views(operand, out[index])
            if out is not None
            else [
                new_result(operand.shape, np.dtype(leaf.dtype(Role.OUTPUT)) if result is None else result.dtype)
                for _ in _memories(operand.backend, devices[index])
            ]
            for index, (leaf, operand, result) in enumerate(zip(leaves, inputs, made, strict=True))
        ]
        # A view may be a copy, as of a lazily conjugated tensor, so all are made before anything is written.
        jobs = [
            Job(leaf.leaf.dtype, _views(operand, operand.arrays), ends)
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

    def repeater(self, plan: Plan, fold: Fold, backends: Sequence[ArrayBackend]) -> Repeat | None:
        """Return a repeater of one pass by the native core; None where the core does not fold, or JAX wants float32."""
        leaves = zip(backends, plan.leaves, strict=True)
        is_alike = all(
            backend.result_dtype(fold, leaf.dtype) == fold.result_dtype(leaf.dtype) for backend, leaf in leaves
        )
        serves = is_alike and native.HAS_NATIVE
        return _HostRepeater(plan, fold, backends).repeat if serves else None


class _HostRepeater:
    """Repeats one kind of call. Its state never changes: several threads may use it at once."""

    def __init__(self, plan: Plan, fold: Fold, backends: Sequence[ArrayBackend]) -> None:
        dtypes = tuple(native.DTYPES[leaf.dtype] for leaf in plan.leaves)
        how = native.OPS[fold.op.name], native.ACCUMULATIONS[fold.accumulate], native.level()
        self._fold = native.RowFold(dtypes, *how).fold
        self._makers, self._adopters = [], []
        for backend, leaf, devices in zip(backends, plan.leaves, output_devices(plan), strict=True):
            dtype = np.dtype(fold.result_dtype(leaf.dtype))
            self._makers.append((backend.new_row, dtype, len(_memories(backend, devices))))
            self._adopters.append((backend, devices))
        counts_writes = any(type(backend).wrote is not ArrayBackend.wrote for backend in backends)
        self._before = _note_writes if counts_writes else None

    def repeat(self, rows: list[Row], targets: list[Row] | None) -> Results | None:
        """Fold the rows by their addresses, which the native core checks."""
        ends = targets
        if ends is None:
            ends = [make(row, dtype, count) for row, (make, dtype, count) in zip(rows, self._makers, strict=True)]
        try:
            # False: the core has found overlaps and written nothing; the slow path raises the error.
            if not self._fold(rows, ends, None if targets is None else self._before):
                return None
        except BaseException as error:  # Ctrl-C, or the error of a signal handler
            error.add_note(UNFINISHED)
            raise
        if targets is not None:
            return []
        pairs = zip(ends, self._adopters, strict=True)
        return [
            tuple(backend.from_hosts(end.arrays, devices)) if end.backend is None else end.arrays
            for end, (backend, devices) in pairs
        ]


def _note_writes(targets: Sequence[Row]) -> None:
    for target in targets:
        target.backend.wrote(target.arrays)


def output_devices(plan: Plan) -> list[list[str]]:
    """Return, for each leaf of a plan, the devices of its results in the order of the destination's components."""
    return [[plan.buffers[index].device for index in indices] for indices in buffers_of_leaves(plan, Role.OUTPUT)]


def _memories(backend: ArrayBackend, devices: list[str]) -> list[str]:
    """Return the devices that need memory of their own for results."""
    return devices[:1] if backend.shares_results else devices


def _own_result(leaf: LeafActions, operand: Operand) -> HostArray | None:
    """Return the row-major result of a leaf that the kernel does not fold; None for the others."""
    views = _views(operand, operand.arrays)
    if leaf.leaf.goal is not Goal.FOLD:
        result: HostArray = leaf._replace(backend=_NUMPY).result(views)
        return result
    if leaf.fold is None or leaf.fold.accumulation_fn is None:
        return None
    arrays = [operand.backend.from_host(_read_only(view), "cpu:0") for view in views]
    # A copy: the function may return an input, which an in-place call overwrites before all outputs are written.
    return _view(operand, leaf.result(arrays)).copy()


def _views(operand: Operand, arrays: Sequence[Any]) -> list[HostArray]:
    """Return NumPy views of arrays of a leaf, and reuse those that its operand has."""
    # By identity: the operand holds the arrays, so ids are unique while this runs.
    known = {id(array): view for array, view in zip(operand.arrays, operand.views, strict=False) if view is not None}
    return [known[id(array)] if id(array) in known else _view(operand, array) for array in arrays]


def _view(operand: Operand, array: Any) -> HostArray:
    view = operand.backend.host_view(array)
    if view is None:
        raise AssertionError(operand)  # the planner chose the host executor, so all arrays are in host memory
    return view


def _read_only(view: HostArray) -> HostArray:
    view = view.view()
    view.flags.writeable = False
    return view
