"""The one rule for averages of integers: the nearest whole number to the exact value, halves to even."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from treefold.dtypes import itemsize

Array = npt.NDArray[Any]

_SIGNED_BITS = 63


def nearest_whole(parts: Sequence[Array], numerators: Sequence[int], divisor: int) -> Array | None:
    """Return the whole numbers nearest to a combination of integers, halves to even, in their own dtype.

    Args:
        parts: Arrays of one integer dtype and shape, at least one.
        numerators: A whole number for each.
        divisor: A whole number above 0.

    Returns:
        An array; None if one of the results is beyond the dtype.

    >>> nearest_whole([np.array([1, 2]), np.array([2, 5])], [1, 1], 2)
    array([2, 4])

    """
    if sum(numerators) == divisor and are_equal(parts):
        return parts[0]
    dtype = parts[0].dtype
    total = sum(abs(number) for number in numerators)
    fits = max(total, divisor).bit_length() + 8 * itemsize(dtype.name) + 1 <= _SIGNED_BITS
    work = np.int64 if fits else np.object_  # Python's integers: slow, and never too small
    exact = sum(number * part.astype(work) for number, part in zip(numerators, parts, strict=True))
    whole, rest = np.asarray(exact // divisor), np.asarray(exact % divisor)
    is_up = (2 * rest > divisor) | ((2 * rest == divisor) & (whole % 2 == 1))
    nearest = whole + is_up
    bounds = np.iinfo(dtype)
    if nearest.size and (nearest.min() < bounds.min or nearest.max() > bounds.max):
        return None
    rounded: Array = nearest.astype(dtype)
    return rounded


def are_equal(parts: Iterable[Array]) -> bool:
    """Tell whether arrays of one dtype and shape hold the same bytes."""
    first, *others = [np.ascontiguousarray(part).reshape(-1).view(np.uint8) for part in parts]
    return all(np.array_equal(first, other) for other in others)
