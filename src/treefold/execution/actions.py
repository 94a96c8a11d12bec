"""Performs the actions of a plan on arrays, for all executors, which differ in memory and in the order of actions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from treefold.backends import ArrayBackend
from treefold.dtypes import INTEGERS
from treefold.errors import ArgumentError
from treefold.execution.host_fold import fold_into
from treefold.execution.interface import Operand, Results
from treefold.fold import AccumulationFn, Fold
from treefold.plan import Movement, Plan
from treefold.plan.actions import buffers_of_leaves, dtype_in, fills
from treefold.plan.ir import Action, Buffer, Combine, Concat, Goal, Leaf, Range, Role
from treefold.reduce_op import ReduceOp


class LeafActions(NamedTuple):
    """Performs actions on the arrays of one leaf, which are 1-d and of one framework.

    Args:
        leaf: The leaf.
        num_contributions: The contributions to each element in the plan; this process may hold only some of them.
        backend: The backend of the arrays.
        shape: The leaf's shape, for an ``accumulation_fn``.
        path: The leaf's path, for its errors.
        fold: The arithmetic; None for plans that only move values.
        result_dtype: The dtype of a fold's results in the arrays' framework; None without a fold.

    """

    leaf: Leaf
    num_contributions: int
    backend: ArrayBackend
    shape: tuple[int, ...]
    path: str
    fold: Fold | None
    result_dtype: str | None

    def dtype(self, role: Role) -> str:
        """Return the dtype of this leaf's elements in a buffer of a role."""
        return dtype_in(role, self.leaf, self.fold, result=self.result_dtype)

    def computes(self, action: Action) -> bool:
        """Return whether an action computes new numbers; other actions only move numbers."""
        return isinstance(action, Combine) or (isinstance(action, Concat) and action.final and self.divides_rows)

    def compute(self, action: Action, parts: Sequence[Any]) -> Any:
        """Return the result of an action that ``computes``.

        ``parts``: the arrays that it reads, all on one device. An ``accumulation_fn`` may write into them, and may
        return one.
        """
        if isinstance(action, Combine):
            return self._combine(parts, is_final=action.final)
        return self._divide(self.backend.ravel_concat(parts))

    def result(self, contributions: Sequence[Any]) -> Any:
        """Return the leaf's result from all contributions, on one device, in place of all its actions.

        The result may be a view of a contribution, if there is only one or an ``accumulation_fn`` returns it.
        """
        if self.leaf.goal is Goal.FOLD:
            return self._combine(contributions, is_final=True)
        joined = self.backend.ravel_concat(contributions)
        return self._divide(joined) if self.divides_rows else joined

    def mean(self, total: Any) -> Any:
        """Return the mean; ``total``: the sum of all contributions, in the accumulator's dtype."""
        return self._combine([total], is_final=True) if self.leaf.dtype in INTEGERS else self._divide(total)

    def fold_on_host(self, action: Action, parts: Sequence[Any], target: Any) -> bool:
        """Fold with the kernel directly into the target and return True; return False, with nothing done, if it cannot.

        The bits are those of ``compute``, but there is no temporary array, and all threads work.
        """
        fold, end = self.fold, self.backend.host_view(target)
        if fold is None or fold.accumulation_fn is not None or end is None or not isinstance(action, Combine):
            return False
        if fold.op is ReduceOp.MEAN and not (action.final and len(parts) == self.num_contributions):
            return False  # the kernel would divide by the number of its sources
        # The kernel folds host arrays in the leaf's own dtype. Wider partial folds need the backend's arithmetic.
        views = [view for part in parts if (view := self.backend.host_view(part)) is not None]
        dtypes = {view.dtype.name for view in views}
        if len(views) < len(parts) or dtypes != {self.leaf.dtype} or end.dtype.name != self.dtype(Role.OUTPUT):
            return False
        fold_into(views, [end], fold, self.leaf.dtype)
        return True

    @property
    def divides_rows(self) -> bool:
        """Whether the result is sparse rows, divided by the number of contributions."""
        return self.leaf.goal is Goal.ROWS and self.fold is not None and self.fold.op is ReduceOp.MEAN

    def _combine(self, parts: Sequence[Any], *, is_final: bool) -> Any:
        fold = self.fold
        if fold is None:
            raise AssertionError(self.leaf)
        if fold.accumulation_fn is not None:
            shaped = [self.backend.reshape(part, self.shape) for part in parts]
            made = _accumulate(self.backend, shaped, fold.accumulation_fn, self.path)
            return self._divide(made) if fold.op is ReduceOp.MEAN else made
        # The last fold divides by the number of contributions, not by that of its parts, which may be partial folds.
        divisor = self.num_contributions if is_final else None
        # Partial folds have the dtype of travel: 16-bit results are rounded once, from a wider one.
        result = self.dtype(Role.OUTPUT if is_final else Role.PARTIAL)
        return self.backend.combine(parts, fold, dtype=self.leaf.dtype, divisor=divisor, result=result)

    def _divide(self, array: Any) -> Any:
        return self.backend.scale(array, self.num_contributions, self.dtype(Role.OUTPUT))


def _accumulate(backend: ArrayBackend, arrays: Sequence[Any], function: AccumulationFn, path: str) -> Any:
    """Return the flat result of an ``accumulation_fn``, which may write into whole arrays, and may return one.

    Raises:
        ArgumentError: It did not return one array of its inputs' framework, shape and dtype.

    """
    shape, dtype = backend.shape_dtype(arrays[0])
    result = function(list(arrays))
    where, expected = f" at {path}" if path else "", f"{dtype} {shape}"
    if not backend.owns(result):
        raise ArgumentError.accumulation_result(where, f"a {type(result).__name__}", expected)
    refusal = backend.refusal(result)
    if refusal is not None:
        raise ArgumentError.accumulation_result(where, refusal.got, expected)
    # Checked before anything is written: the plan's buffer has exactly this shape and dtype.
    got_shape, got_dtype = backend.shape_dtype(result)
    if (got_shape, got_dtype) != (shape, dtype):
        raise ArgumentError.accumulation_result(where, f"{got_dtype} {got_shape}", expected)
    return backend.ravel_concat([result])


def leaf_actions(movement: Movement, inputs: Sequence[Operand], fold: Fold | None) -> list[LeafActions]:
    """Return the ``LeafActions`` of each leaf of a movement."""
    paths = movement.paths if isinstance(movement, Plan) else ("",) * len(movement.leaves)
    counts = map(len, buffers_of_leaves(movement, Role.INPUT))
    leaves = []
    for leaf, path, count, operand in zip(movement.leaves, paths, counts, inputs, strict=True):
        backend = operand.backend
        result = None if fold is None else backend.result_dtype(fold, leaf.dtype)
        leaves.append(LeafActions(leaf, count, backend, operand.shape, path, fold, result))
    return leaves


def outputs(movement: Movement, inputs: Sequence[Operand], array_of: Callable[[int], Any]) -> Results:
    """Return each leaf's outputs in its shape; ``array_of`` returns the flat array of an output's index."""
    return [
        tuple([operand.backend.reshape(array_of(index), operand.shape) for index in indices])
        for operand, indices in zip(inputs, buffers_of_leaves(movement, Role.OUTPUT), strict=True)
    ]


@dataclass(frozen=True, slots=True)
class FlatMemory:
    """The memory of a plan's buffers, a 1-d array each, for executors that write in place.

    Args:
        leaves: The actions of each leaf.
        buffers: The plan's buffers, then those that a schedule added.
        arrays: The memory of each buffer.
        assign: Writes its second argument into its first.

    """

    leaves: Sequence[LeafActions]
    buffers: Sequence[Buffer]
    arrays: Sequence[Any]
    assign: Callable[[Any, Any], object]

    def part(self, where: Range) -> Any:
        """Return a view of a range."""
        return self.arrays[where.buffer][where.start : where.stop]

    def rest(self, where: Range) -> Sequence[Any]:  # noqa: ARG002 - of memory with exact sums
        """Return what follows the message of a range: nothing."""
        return ()

    def perform(self, action: Action) -> None:
        """Perform an action; frameworks with streams only enqueue it."""
        leaf = self.leaves[self.buffers[action.target.buffer].leaf]
        if not leaf.computes(action):
            for source, filled in fills(action):
                self.assign(self.part(filled), self.part(source))
            return
        parts, target = [self.part(source) for source in action.sources], self.part(action.target)
        if not leaf.fold_on_host(action, parts, target):
            self.assign(target, leaf.compute(action, parts))
