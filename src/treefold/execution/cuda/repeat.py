"""Repeats calls between replicas on one GPU: all but the addresses is known from the first call."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from treefold.backends import Row as ReadRow
from treefold.devices import torch_device
from treefold.execution.cuda.fused import Row, fold_rows, is_fused
from treefold.execution.interface import Repeat
from treefold.execution.operands import Results
from treefold.fold import Fold
from treefold.plan import Plan
from treefold.plan.actions import buffers_of_leaves
from treefold.plan.ir import Goal, Role

_MOST_REMEMBERED = 64


class _Repeater:
    """Repeats one kind of call. Safe to use from many threads."""

    def __init__(self, plan: Plan, fold: Fold, is_asked: Callable[[], bool]) -> None:
        self._fold, self._is_asked = fold, is_asked
        self._device = torch.device(torch_device(plan.devices[0]))
        self._dtypes = [leaf.dtype for leaf in plan.leaves]
        self._counts = [len(outputs) for outputs in buffers_of_leaves(plan, Role.OUTPUT)]
        self._disjoint: set[tuple[tuple[int, ...], ...]] = set()

    def __call__(self, rows: list[ReadRow], targets: list[ReadRow] | None) -> Results | None:
        """Enqueue the fold of each row on the current stream."""
        # Asked in every call, because the environment may name another executor since the plan was made.
        if not self._is_asked():
            return None
        made: Results = []
        if targets is None:
            try:
                made = [self._new(*leaf) for leaf in zip(rows, self._dtypes, self._counts, strict=True)]
            # Nothing is written yet. The slow path runs out of it again, and raises with the note that says so.
            except torch.OutOfMemoryError:
                return None
            # New memory overlaps nothing: PyTorch gives out none that a tensor of the caller still holds.
            ends = [tuple([tensor.data_ptr() for tensor in tensors]) for tensors in made]
        else:
            if not self._are_disjoint(rows if targets is rows else [*rows, *targets]):
                return None
            ends = [row.addresses for row in targets]
        leaves = zip(self._dtypes, rows, ends, strict=True)
        jobs = [Row(dtype, math.prod(row.shape), row.addresses, addresses) for dtype, row, addresses in leaves]
        fold_rows(jobs, self._fold, self._device)
        # Frameworks that count writes (autograd's version counters) do not see what a kernel writes.
        for target in targets or ():
            target.backend.wrote(target.arrays)
        return made

    def _new(self, row: ReadRow, dtype: str, count: int) -> tuple[Any, ...]:
        result = getattr(torch, self._fold.result_dtype(dtype))
        return tuple([torch.empty(row.shape, dtype=result, device=self._device) for _ in range(count)])

    def _are_disjoint(self, rows: Sequence[ReadRow]) -> bool:
        """Tell whether no two arrays share memory; what was found of the same addresses before still holds."""
        # Addresses alone: a repeater serves one kind of call, so the lengths are always the same.
        key = tuple([row.addresses for row in rows])
        if key in self._disjoint:
            return True
        extents = sorted(
            (start, start + math.prod(row.shape) * row.dtype.itemsize)
            for row in rows
            for start in row.addresses
            if math.prod(row.shape)
        )
        if any(one[1] > two[0] for one, two in itertools.pairwise(extents)):
            return False
        # No lock: each of these calls on a set is atomic, and what another thread forgets is only found out once more.
        if len(self._disjoint) >= _MOST_REMEMBERED:
            self._disjoint.clear()
        self._disjoint.add(key)
        return True


def repeater(plan: Plan, fold: Fold, is_asked: Callable[[], bool]) -> Repeat | None:
    """Return what repeats a call of this plan; None if it is not one pass of the kernel over every leaf, on one GPU.

    ``is_asked``: whether the kernel is still what such calls are to run by.
    """
    is_one_gpu = len(plan.devices) == 1 and plan.devices[0].startswith("gpu")
    is_fold = all(leaf.goal is Goal.FOLD and is_fused(fold, leaf.dtype) for leaf in plan.leaves)
    return _Repeater(plan, fold, is_asked) if is_one_gpu and is_fold else None
