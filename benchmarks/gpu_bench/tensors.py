"""The contributions to some work as tensors, and an exact check of every element of its results."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from treefold.backends.torch import TorchBackend
from treefold.bench.arrays import pattern
from treefold.bench.work import Work
from treefold.dtypes import itemsize
from treefold.testing import fold_arrays

#: As far apart as PyTorch's allocator places tensors.
_ALIGNMENT = 512
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_BACKEND = TorchBackend()

#: For each tensor of the work, one per replica.
Columns = list[list[Any]]


class Tensors:
    """One tensor per shape and replica. Tensors of one place lie in one block, so that one copy moves all of them."""

    def __init__(self, work: Work, places: Sequence[str], *, pin: Callable[[Any], Any] | None = None) -> None:
        """Allocate zeros, replica r on ``places[r]``. ``pin`` moves a block of the host to memory for GPUs to read."""
        self.work, self.places = work, tuple(places)
        self.blocks: dict[str, Any] = {}
        for place in dict.fromkeys(places):
            length = sum(map(self._room, work.shapes)) * places.count(place)
            block = torch.zeros(length, dtype=getattr(torch, work.dtype), device=place)
            self.blocks[place] = pin(block) if pin is not None and place == "cpu" else block
        self.columns: Columns = [[] for _ in work.shapes]
        self._expected: dict[int, Any] = {}
        begins = dict.fromkeys(places, 0)
        for place in places:
            for column, shape in zip(self.columns, work.shapes, strict=True):
                begin = begins[place]
                column.append(self.blocks[place][begin : begin + math.prod(shape)].view(shape))
                begins[place] = begin + self._room(shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all contributions."""
        return self.work.nbytes * len(self.places)

    def clear(self) -> None:
        """Fill everything with zeros, which repeated reductions in place leave as they are."""
        for block in self.blocks.values():
            block.zero_()

    def name_owners(self) -> None:
        """Fill the contributions with values that name their replica."""
        for number, column in enumerate(self.columns):
            for replica, tensor in enumerate(column):
                _fill(tensor, _period_tensor(self._pattern(replica, number), tensor.device))

    def count_wrong(self, results: Sequence[Sequence[Any]]) -> int:
        """Return how many elements of all results differ in any bit from those of the exact oracle.

        ``results``: for each tensor of the work, its result for every replica.
        """
        wrong = 0
        for number, (shape, column) in enumerate(zip(self.work.shapes, results, strict=True)):
            if len(column) != len(self.places):
                raise AssertionError(column)
            wrong += sum(_count_wrong(tensor, shape, self._right(number)) for tensor in column)
        return wrong

    def _pattern(self, replica: int, number: int) -> Any:
        return pattern(self.work, replica, number)

    def _right(self, number: int) -> Any:
        """Return one period of a result by the exact oracle, which is slow and therefore cached."""
        if number not in self._expected:
            rows = [self._pattern(replica, number) for replica in range(self.work.devices)]
            self._expected[number] = fold_arrays(rows, self.work.op, accumulate=self.work.accumulate)
        return self._expected[number]

    def _room(self, shape: Sequence[int]) -> int:
        """Return the number of elements that a tensor takes in a block."""
        unit = _ALIGNMENT // itemsize(self.work.dtype)
        return -(-math.prod(shape) // unit) * unit


class AdversarialTensors(Tensors):
    """Contributions that are no work in place: two pairs cancel, and the sum of their errors loses what decides."""

    _EXPONENTS = (100, 20, -60, -90, 100, 20, -60, -90)

    def clear(self) -> None:
        """Leave the contributions: other values would not be adversarial."""

    def _pattern(self, replica: int, number: int) -> Any:
        period = super()._pattern(0, number)
        sign = -1 if replica in {4, 5} else 1
        return (period.astype(float) * sign * 2.0 ** self._EXPONENTS[replica]).astype(period.dtype)


def _period_tensor(period: Any, device: Any) -> Any:
    return _BACKEND.from_host(period.copy(), "cpu:0").to(device)


def _fill(tensor: Any, period: Any) -> None:
    """Repeat one period through a tensor."""
    flat, whole = tensor.view(-1), tensor.numel() // len(period)
    flat[: whole * len(period)].view(whole, len(period)).copy_(period)
    rest = flat[whole * len(period) :]
    rest.copy_(period[: len(rest)])


def _count_wrong(tensor: Any, shape: Sequence[int], period: Any) -> int:
    right = _period_tensor(period, tensor.device)
    if tuple(tensor.shape) != tuple(shape) or tensor.dtype is not right.dtype:
        return math.prod(shape)
    bits = _BITS[tensor.element_size()]
    flat, right = tensor.reshape(-1).view(bits), right.view(bits)
    whole = len(flat) // len(right)
    rest = flat[whole * len(right) :]
    rows = flat[: whole * len(right)].view(whole, len(right))
    return int((rows != right).sum()) + int((rest != right[: len(rest)]).sum())
