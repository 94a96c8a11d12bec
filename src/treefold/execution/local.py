"""Runs a plan step by step on any backend in one process: real devices, traced graphs, emulated links.

A buffer is a list of the arrays that were written into it, so the backend needs no mutable memory. A copy makes a new
array on the target's device, and reading a range splits and joins arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from treefold.backends import ArrayBackend
from treefold.execution.actions import leaf_actions, outputs
from treefold.execution.interface import CallSummary, Executor, Operand, Results, handed_over
from treefold.fold import Fold
from treefold.plan import Plan
from treefold.plan.ir import Action, Range, Role
from treefold.plan.plan import STEP_BY_STEP


class LocalExecutor(Executor):
    """Runs each step by the framework's own operations, on any of its devices."""

    name = STEP_BY_STEP

    def refusal(self, call: CallSummary) -> str:
        """Refuse host memory, where one pass needs no steps."""
        return "on one memory, one pass moves less and rounds once" if call.is_in_host_memory else ""

    def run(self, plan: Plan, inputs: Sequence[Operand], fold: Fold | None, out: Results | None) -> Results:
        """Return each leaf's result per component; with ``out``, copied into the arrays given once all are computed."""
        walk = StepWalk(plan, inputs, fold)
        for step in plan.steps:
            # All actions are evaluated before any result is written: their order within a step does not count.
            results = [(action.target, walk.evaluate(action)) for action in step.actions]
            for target, array in results:
                walk.write(target, array)
        results_by_leaf = walk.results()
        for operand, arrays in zip(inputs, results_by_leaf, strict=True):
            for array in arrays:
                operand.backend.synchronize(array)
        return handed_over(inputs, results_by_leaf, out)


@dataclass(slots=True)
class _Held:
    """An array that was written into elements ``start`` to ``stop`` of a buffer."""

    start: int
    stop: int
    array: Any

    def between(self, start: int, stop: int, backend: ArrayBackend) -> list[_Held]:
        """Return the part of the array between two positions, as a list of one or none."""
        start, stop = max(start, self.start), min(stop, self.stop)
        if start >= stop:
            return []
        if (start, stop) == (self.start, self.stop):
            return [self]
        return [_Held(start, stop, backend.split(self.array, start - self.start, stop - self.start))]


class StepWalk:
    """The contents of every buffer while a plan runs."""

    def __init__(self, plan: Plan, inputs: Sequence[Operand], fold: Fold | None) -> None:
        """Put the contributions into the inputs."""
        self.plan, self.inputs, self.fold = plan, inputs, fold
        self.leaves = leaf_actions(plan, inputs, fold)
        self.contents: list[list[_Held]] = [[] for _ in plan.buffers]
        for index, buffer in enumerate(plan.buffers):
            if buffer.role is Role.INPUT and buffer.length:
                operand = inputs[buffer.leaf]
                flat = operand.backend.ravel_concat([operand.arrays[buffer.position]])
                self.contents[index].append(_Held(0, buffer.length, flat))

    def evaluate(self, action: Action) -> Any:
        """Return the array that an action makes, in new memory."""
        buffer = self.plan.buffers[action.target.buffer]
        leaf = self.leaves[buffer.leaf]
        parts = [self.read(source) for source in action.sources]
        if self.fold is not None and self.fold.accumulation_fn is not None and leaf.computes(action):
            # The function may write into its arguments and keep its result, so both are copied.
            own = [self.plan.buffers[source.buffer].role is Role.INPUT for source in action.sources]
            copies = [
                leaf.backend.copy_to(p, buffer.device) if is_own else p for p, is_own in zip(parts, own, strict=True)
            ]
            return leaf.backend.copy_to(leaf.compute(action, copies), buffer.device)
        if leaf.computes(action):
            return leaf.compute(action, parts)
        # A concatenation of one array may be a view of it, and results must not alias inputs.
        return leaf.backend.copy_to(parts[0], buffer.device) if len(parts) == 1 else leaf.backend.ravel_concat(parts)

    def read(self, source: Range) -> Any:
        """Return a range as one array."""
        backend = self.inputs[self.plan.buffers[source.buffer].leaf].backend
        # The pieces are sorted, and the proof says that they cover the range.
        held = [
            held for one in self.contents[source.buffer] for held in one.between(source.start, source.stop, backend)
        ]
        return held[0].array if len(held) == 1 else backend.ravel_concat([one.array for one in held])

    def write(self, target: Range, array: Any) -> None:
        """Put an array into a range and drop what the range held before."""
        backend = self.inputs[self.plan.buffers[target.buffer].leaf].backend
        # Old contents are cut away, never overwritten: another buffer may hold a view of the same array.
        kept = [_Held(target.start, target.stop, array)]
        for held in self.contents[target.buffer]:
            kept += held.between(0, target.start, backend) + held.between(target.stop, held.stop, backend)
        self.contents[target.buffer] = sorted(kept, key=lambda held: held.start)

    def results(self) -> Results:
        """Return each output in the shape of its leaf."""
        return outputs(self.plan, self.inputs, self._output)

    def _output(self, index: int) -> Any:
        """Return the contents of an output. No step makes an output without elements, so it is made here."""
        buffer = self.plan.buffers[index]
        if buffer.length:
            return self.read(Range(index, 0, buffer.length))
        leaf = self.leaves[buffer.leaf]
        array = leaf.backend.copy_to(leaf.backend.ravel_concat([self.inputs[buffer.leaf].arrays[0]]), buffer.device)
        dtype = leaf.dtype(Role.OUTPUT)
        return array if dtype == leaf.leaf.dtype else leaf.backend.scale(array, 1, dtype)
