"""The arithmetic of averaging: treefold's own fold for floats, exact whole numbers for integers."""

from __future__ import annotations

import fractions
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from treefold.cli.average.checkpoint import CARRIED, Spec
from treefold.dtypes import INTEGERS, itemsize
from treefold.errors import CheckpointError
from treefold.execution.host_fold import fold_into
from treefold.fold import Fold
from treefold.reduce_op import ReduceOp

Array = npt.NDArray[Any]

_SIGNED_BITS = 63


def check_meaning(name: str, spec: Spec, fold: Fold) -> None:
    """Refuse tensors that the op has no meaning for.

    Raises:
        CheckpointError: the sum of flags or of 8-bit floats.

    """
    if spec.dtype in CARRIED and fold.op is not ReduceOp.MEAN:
        raise CheckpointError.not_summable(name, spec.dtype)


def combine(name: str, dtype: str, parts: Sequence[Array], fold: Fold, out: Array) -> None:
    """Write the sum or mean of one part of a tensor in all files into ``out``, of their dtype.

    Raises:
        CheckpointError: what has no mean differs.

    """
    if dtype in CARRIED:
        if not _all_equal(parts):
            raise CheckpointError.carried(name, dtype)
        out[...] = parts[0]
    elif dtype in INTEGERS and fold.op is ReduceOp.MEAN:
        out[...] = parts[0] if _all_equal(parts) else rounded_mean(parts, fold.weights)
    else:
        fold_into(parts, [out], fold, dtype)


def rounded_mean(parts: Sequence[Array], weights: Sequence[float] | None = None) -> Array:
    """Return the whole number nearest to the (weighted) mean, halves to even, in the integers' own dtype. Exact.

    >>> rounded_mean([np.array([1, 2]), np.array([2, 5])])
    array([2, 4])
    """
    dtype = parts[0].dtype
    shares = _whole_shares([1.0] * len(parts) if weights is None else weights)
    count = sum(shares)
    fits = count.bit_length() + 8 * itemsize(dtype.name) + 1 <= _SIGNED_BITS
    work = np.int64 if fits else np.object_  # Python's integers: slow, and never too small
    total = sum(share * part.astype(work) for share, part in zip(shares, parts, strict=True))
    whole, rest = np.asarray(total // count), np.asarray(total % count)
    is_up = (2 * rest > count) | ((2 * rest == count) & (whole % 2 == 1))
    mean: Array = (whole + is_up).astype(dtype)
    return mean


def _whole_shares(weights: Sequence[float]) -> list[int]:
    """Return whole numbers in the same proportion as weights, which floats always have."""
    exact = [fractions.Fraction(weight) for weight in weights]
    scale = math.lcm(*(weight.denominator for weight in exact))
    shares = [int(weight * scale) for weight in exact]
    common = math.gcd(*shares)
    return [share // common for share in shares]


def _all_equal(parts: Sequence[Array]) -> bool:
    first = parts[0].view("uint8")
    return all(np.array_equal(first, part.view("uint8")) for part in parts[1:])
