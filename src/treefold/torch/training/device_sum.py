"""Exact partial sums on a GPU, by PyTorch's own operations on float64, each of which rounds once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import distributed

from treefold.backends import HostArray, backend_of
from treefold.backends.numpy_partial import LENGTH, Factor
from treefold.dtypes import numpy_dtype
from treefold.partials.partial_sum import PartialSum, Pieces


class DeviceSum:
    """The exact sum of flat tensors of one dtype, each times a weight, where they lie.

    Each element has two float64: a sum, and the sum of the errors of its additions (Knuth), as in the pairs of a
    ``PartialSum``. Contributions that they do not hold exactly, or that are not finite, are added on the host.

    Attributes:
        dtype: The dtype of the tensors: float16, bfloat16 or float32.
        length: The number of elements of each.

    """

    def __init__(self, dtype: str, length: int, device: torch.device) -> None:
        """Begin with the sum of no tensors."""
        self.dtype, self.length = dtype, length
        padded = -(-length // LENGTH) * LENGTH
        self._sums, self._rests = (torch.empty(padded, dtype=torch.float64, device=device) for _ in range(2))
        self._others: PartialSum | None = None
        self.clear()

    @staticmethod
    def takes(tensor: torch.Tensor, dtype: torch.dtype) -> bool:
        """Return whether tensors like this one are added here, to a sum of a dtype: float64 is added on the host."""
        return bool(tensor.device.type != "cpu" and dtype != torch.float64)

    def clear(self) -> None:
        """Return to the sum of no tensors, in the same memory."""
        self._sums.fill_(-0.0)  # the neutral element of addition
        self._rests.zero_()
        self._others = None

    @property
    def nbytes(self) -> int:
        """The bytes of memory in use, on the device and on the host."""
        return 2 * 8 * len(self._sums) + (0 if self._others is None else self._others.nbytes)

    def add(self, row: torch.Tensor, factor: Factor) -> None:
        """Add a tensor times a weight."""
        values = row.double()
        sums, rests = self._sums[: self.length], self._rests[: self.length]
        total, errors, are_held = sums, rests, torch.isfinite(values)
        for piece in factor.pieces or (1.0,):
            term = values * piece  # exact: 24 bits times 26
            both = total + term
            lost = _error(total, term, both)
            wider = errors + lost
            are_held &= _error(errors, lost, wider) == 0
            total, errors = both, wider
        if not bool(are_held.all()):
            rest = in_numpy(torch.where(are_held, -0.0, values).to(row.dtype))
            if self._others is None:
                self._others = PartialSum(self.dtype, self.length)
            self._others.add(Pieces.of([rest.astype(numpy_dtype(self.dtype), copy=False)]), factor)
            total, errors = torch.where(are_held, total, sums), torch.where(are_held, errors, rests)
        sums.copy_(total)
        rests.copy_(errors)

    def add_scattered(self, contributions: torch.Tensor, weights: Sequence[int], group: Any) -> None:
        """Add all ranks' contributions to this rank's part, over the process group that there is.

        Args:
            contributions: The contributions of this rank, flat: to each rank's part, in order of ranks.
            weights: The weight of each rank, in units of 2**-64; 0 leaves out its contributions.
            group: The process group of the ranks, of any backend; all of them call. None: one rank has all parts.

        """
        received = contributions
        if group is not None:
            received = torch.empty_like(contributions)
            distributed.all_to_all_single(received, contributions, group=group)
        for row, words in zip(received.chunk(len(weights)), weights, strict=True):
            if words:
                self.add(row, Factor(words))

    def on_host(self) -> PartialSum:
        """Return the sum as a partial sum in host memory."""
        sums, rests = (one.cpu().numpy().reshape(-1, LENGTH) for one in (self._sums, self._rests))
        modes = (rests != 0).any(axis=1)
        state = PartialSum(self.dtype, 0).state()
        state |= {"modes": modes.view(np.uint8), "sums": sums, "rests": rests[modes]}
        partial = PartialSum.of_state(self.dtype, self.length, state, "a sum on a device")
        if self._others is not None:
            partial.merge(self._others)
        return partial


def in_numpy(tensor: torch.Tensor) -> HostArray:
    """Return a flat tensor as a host array, bfloat16 included."""
    on_host = tensor.detach().cpu()
    backend = backend_of(on_host)
    view = None if backend is None else backend.host_view(on_host)
    if view is None:
        raise AssertionError
    return view


def _error(a: torch.Tensor, b: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    """Return the error of a + b exactly (Knuth)."""
    part = total - a
    return (a - (total - part)) + (b - part)
