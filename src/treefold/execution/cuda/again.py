"""Batches between replicas on one GPU of shapes seen before: all but the addresses is known from the first call."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch

from treefold.backends import DeviceRow
from treefold.devices import torch_device
from treefold.execution.cuda.fused import Row, fold_rows, is_fused
from treefold.fold import Fold
from treefold.plan import Plan
from treefold.plan.ir import Goal, Role

_MOST_REMEMBERED = 64


class Again:
    """One kind of call, ready to be made again. Safe to use from many threads."""

    def __init__(self, plan: Plan, fold: Fold) -> None:
        """Take a plan that ``is_repeatable``."""
        self._fold = fold
        self._device = place_of(plan.devices[0])
        self._counts = [0] * len(plan.leaves)
        for buffer in plan.buffers:
            self._counts[buffer.leaf] += buffer.role is Role.OUTPUT
        self._disjoint: set[tuple[tuple[int, ...], ...]] = set()

    def run(self, sources: Sequence[DeviceRow], targets: Sequence[DeviceRow] | None) -> list[tuple[Any, ...]] | None:
        """Enqueue the fold of each row on the current stream and return new results per row, none if they are given.

        ``targets`` may be ``sources``. None, and nothing done, where the full way must say what is wrong.
        """
        made: list[tuple[Any, ...]] = []
        if targets is None:
            try:
                made = [self._new(row, count) for row, count in zip(sources, self._counts, strict=True)]
            except torch.OutOfMemoryError:
                return None
            ends = [tuple([tensor.data_ptr() for tensor in tensors]) for tensors in made]
        else:
            if not self._are_disjoint(sources if targets is sources else [*sources, *targets]):
                return None
            ends = [row.addresses for row in targets]
        rows = [
            Row(row.dtype, math.prod(row.shape), row.addresses, addresses)
            for row, addresses in zip(sources, ends, strict=True)
        ]
        fold_rows(rows, self._fold, self._device)
        return made

    def _new(self, row: DeviceRow, count: int) -> tuple[Any, ...]:
        dtype = getattr(torch, self._fold.result_dtype(row.dtype))
        return tuple([torch.empty(row.shape, dtype=dtype, device=self._device) for _ in range(count)])

    def _are_disjoint(self, rows: Sequence[DeviceRow]) -> bool:
        """Tell whether no two arrays share memory; what was found of the same addresses before still holds."""
        key = tuple([row.addresses for row in rows])
        if key in self._disjoint:
            return True
        extents = sorted(
            (start, start + math.prod(row.shape) * getattr(torch, row.dtype).itemsize)
            for row in rows
            for start in row.addresses
            if math.prod(row.shape)
        )
        if any(one[1] > two[0] for one, two in itertools.pairwise(extents)):
            return False
        if len(self._disjoint) >= _MOST_REMEMBERED:
            self._disjoint.clear()
        self._disjoint.add(key)
        return True


def place_of(device: str) -> torch.device:
    """Return PyTorch's device of a GPU."""
    return torch.device(torch_device(device))


def is_repeatable(plan: Plan, fold: Fold) -> bool:
    """Tell whether a plan is one pass of the kernel, over every leaf."""
    is_one_gpu = len(plan.devices) == 1 and plan.devices[0].startswith("gpu")
    return is_one_gpu and all(leaf.goal is Goal.FOLD and is_fused(fold, leaf.dtype) for leaf in plan.leaves)
