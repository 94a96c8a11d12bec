"""Means of whole numbers, written as whole numbers: the exact mean without its fraction, which is how NCCL divides.

Sums of 64 bits would overflow. So numbers travel as two halves, whose sums 2³¹ ranks cannot fill.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from treefold.torch.c10d.checks import WHOLE_MEAN

_BITS = 32


def as_sums(op: str, flats: list[Any]) -> tuple[list[Any], str, str]:
    """Return what travels for flat tensors, by which op, and what ranks agree in: with another op all is as it was."""
    if op != WHOLE_MEAN:
        return flats, op, ""
    return [_halves(flat) for flat in flats], "sum", op


def _halves(flat: Any) -> Any:
    """Return whole numbers as int64, twice as many: what stands above 32 bits of each, then the 32 bits of each."""
    numbers = flat.numpy()
    wide = numbers if numbers.itemsize == np.int64().itemsize else numbers.astype(np.int64)
    low = wide & wide.dtype.type((1 << _BITS) - 1)
    return torch.from_numpy(np.concatenate([wide >> wide.dtype.type(_BITS), low]).astype(np.int64, copy=False))


def write_means(flats: Sequence[Any], sums: Sequence[Any], size: int) -> None:
    """Write the means of ``size`` ranks' numbers, rounded toward zero, given the sums of their halves."""
    for flat, total in zip(flats, sums, strict=True):
        high, low = total.numpy().reshape(2, -1)
        above, rest = np.divmod(high, size)
        below, rest = np.divmod((rest << _BITS) + low, size)
        means = (above << _BITS) + below  # rounded down; of uint64 modulo 2⁶⁴
        if flat.dtype.is_signed:
            means += (means < 0) & (rest > 0)
        np.copyto(flat.numpy(), means, casting="unsafe")
