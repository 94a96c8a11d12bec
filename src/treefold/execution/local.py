"""Walks a plan step by step on any backend in one process: real devices, traced graphs, emulated links.

Buffers are kept as the arrays that were put into them, piece by piece, so that the backend needs no mutable memory:
a copy makes a new array on the target's device, a range is read by splitting and joining.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from treefold.backends import ArrayBackend
from treefold.execution.callback import accumulate
from treefold.execution.operands import Operand, Results, handed_over
from treefold.fold import Fold
from treefold.plan import Plan
from treefold.plan.ir import Action, Combine, Copy, Goal, Range, Role
from treefold.reduce_op import ReduceOp


def run(plan: Plan, inputs: Sequence[Operand], fold: Fold | None, out: Results | None) -> Results:
    """Return each leaf's result per component; with ``out``, copied into the arrays given once all are computed."""
    walk = Walk(plan, inputs, fold)
    for step in plan.steps:
        results = [(action.target, walk.evaluate(action)) for action in step.actions]
        for target, array in results:
            walk.write(target, array)
    results_by_leaf = walk.results()
    for operand, arrays in zip(inputs, results_by_leaf, strict=True):
        for array in arrays:
            operand.backend.synchronize(array)
    return handed_over(inputs, results_by_leaf, out)


@dataclass(slots=True)
class _Piece:
    start: int
    stop: int
    array: Any


class Walk:
    """The contents of every buffer on the way through a plan."""

    def __init__(self, plan: Plan, inputs: Sequence[Operand], fold: Fold | None) -> None:
        """Put the contributions into the inputs."""
        self.plan, self.inputs, self.fold = plan, inputs, fold
        self.contents: list[list[_Piece]] = [[] for _ in plan.buffers]
        for index, buffer in enumerate(plan.buffers):
            if buffer.role is Role.INPUT and buffer.length:
                operand = inputs[buffer.leaf]
                flat = operand.backend.ravel_concat([operand.arrays[buffer.position]])
                self.contents[index].append(_Piece(0, buffer.length, flat))

    def evaluate(self, action: Action) -> Any:
        """Return the array that an action makes."""
        buffer = self.plan.buffers[action.target.buffer]
        backend = self.inputs[buffer.leaf].backend
        if isinstance(action, Copy):
            return backend.copy_to(self.read(action.source), buffer.device)
        if isinstance(action, Combine):
            return self._combine(action, backend, buffer.leaf)
        joined = backend.ravel_concat([self.read(source) for source in action.sources])
        leaf = self.plan.leaves[buffer.leaf]
        if action.final and leaf.goal is Goal.ROWS and self.fold is not None and self.fold.op is ReduceOp.MEAN:
            count = len(self.inputs[buffer.leaf].arrays)
            return backend.scale(joined, count, backend.result_dtype(self.fold, leaf.dtype))
        # One array laid out alone may be a view, and results must not alias inputs.
        return backend.copy_to(joined, buffer.device) if len(action.sources) == 1 else joined

    def _combine(self, action: Combine, backend: ArrayBackend, leaf: int) -> Any:
        if self.fold is None:
            raise AssertionError(action)
        arrays = [self.read(source) for source in action.sources]
        if self.fold.accumulation_fn is not None:
            return self._call_back(action, arrays, self.fold)
        dtype = self.plan.leaves[leaf].dtype
        result = backend.result_dtype(self.fold, dtype) if action.final else self.fold.partial_dtype(dtype)
        divisor = len(self.inputs[leaf].arrays) if action.final else None
        return backend.combine(arrays, self.fold, dtype=dtype, divisor=divisor, result=result)

    def _call_back(self, action: Combine, arrays: list[Any], fold: Fold) -> Any:
        """Hand out copies and take a copy: the function may write into what it gets, and keep what it returns."""
        target = self.plan.buffers[action.target.buffer]
        operand = self.inputs[target.leaf]
        for index, source in enumerate(action.sources):
            if self.plan.buffers[source.buffer].role is Role.INPUT:
                arrays[index] = operand.backend.copy_to(arrays[index], target.device)
        shaped = [operand.backend.reshape(array, operand.shape) for array in arrays]
        made = accumulate(operand.backend, shaped, fold, self.plan.paths[target.leaf])
        return operand.backend.copy_to(made, target.device)

    def read(self, source: Range) -> Any:
        """Return a range as one array."""
        backend = self.inputs[self.plan.buffers[source.buffer].leaf].backend
        parts = []
        for piece in self.contents[source.buffer]:
            start, stop = max(piece.start, source.start), min(piece.stop, source.stop)
            if start < stop:
                is_whole = (start, stop) == (piece.start, piece.stop)
                part = piece.array if is_whole else backend.split(piece.array, start - piece.start, stop - piece.start)
                parts.append(part)
        return parts[0] if len(parts) == 1 else backend.ravel_concat(parts)

    def write(self, target: Range, array: Any) -> None:
        """Put an array into a range, in place of what was there."""
        backend = self.inputs[self.plan.buffers[target.buffer].leaf].backend
        kept = []
        for piece in self.contents[target.buffer]:
            for start, stop in (
                (piece.start, min(piece.stop, target.start)),
                (max(piece.start, target.stop), piece.stop),
            ):
                if start < stop:
                    kept.append(
                        _Piece(start, stop, backend.split(piece.array, start - piece.start, stop - piece.start))
                    )
        kept.append(_Piece(target.start, target.stop, array))
        self.contents[target.buffer] = sorted(kept, key=lambda piece: piece.start)

    def results(self) -> Results:
        """Return each output in the shape of its leaf; outputs without elements are made here, as no step does."""
        results: list[list[Any]] = [[] for _ in self.plan.leaves]
        for index, buffer in enumerate(self.plan.buffers):
            if buffer.role is Role.OUTPUT:
                operand = self.inputs[buffer.leaf]
                if buffer.length:
                    flat = self.read(Range(index, 0, buffer.length))
                else:
                    flat = self._empty(operand, buffer.leaf, buffer.device)
                results[buffer.leaf].append(operand.backend.reshape(flat, operand.shape))
        return [tuple(arrays) for arrays in results]

    def _empty(self, operand: Operand, leaf: int, device: str) -> Any:
        array = operand.backend.copy_to(operand.backend.ravel_concat([operand.arrays[0]]), device)
        goal, dtype = self.plan.leaves[leaf].goal, self.plan.leaves[leaf].dtype
        if self.fold is None or self.fold.op is not ReduceOp.MEAN or goal in {Goal.GATHER, Goal.COPY}:
            return array
        return operand.backend.scale(array, 1, operand.backend.result_dtype(self.fold, dtype))
