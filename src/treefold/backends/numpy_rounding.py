"""Rounding on NumPy arrays: once, also where a dtype is reached by way of another."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def rounded(values: Array, dtype: str) -> Array:
    """Round once. ml_dtypes goes from float64 to bfloat16 by way of float32, which would be twice."""
    if dtype == "bfloat16" and values.dtype == np.float64:
        values = _halfway_float32(values)
    return values.astype(dtype, copy=False)


def put(total: Array, where: npt.NDArray[np.intp], values: Array) -> None:
    """Put float64 values into an accumulator; float32 ones are those of 16-bit floats, still to be rounded."""
    total[where] = _halfway_float32(values) if total.dtype == np.float32 else values


def _halfway_float32(values: Array) -> Array:
    """Return float64 values in float32 such that rounding them on, to 16 bits, is rounding once ("round to odd").

    Cut off, with the last bit set where something was lost: never a tie of 16-bit floats that was none before. What is
    too large for float32 is infinite: a partial sum that says so cannot be taken for a number later.
    """
    narrow = values.astype("float32")
    is_inexact = (narrow != values) & np.isfinite(narrow)
    is_larger = is_inexact & (np.abs(narrow) > np.abs(values))
    bits = narrow.view("uint32")
    bits -= is_larger
    bits |= is_inexact
    return narrow
