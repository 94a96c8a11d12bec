"""The arithmetic of a fold on NumPy arrays: the reference for every other kernel in host memory, bit for bit.

One call folds one block: 1-d arrays of equal length, one per contribution, in replica order. Sums and means of whole
contributions are exact, rounded once (``numpy_exact``); partial folds are rounded to their accumulator. Nothing is ever
started from +0.0, so -0.0 survives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from treefold.backends.numpy_exact import exact_fold
from treefold.backends.numpy_product import product
from treefold.backends.numpy_rounding import put, rounded
from treefold.backends.plain_arithmetic import in_plain_arithmetic
from treefold.dtypes import COMPLEX, INTEGERS, OVERFLOWING, REAL
from treefold.fold import Fold, headroom
from treefold.reduce_op import ReduceOp

Array = npt.NDArray[Any]

_EXACT_DOUBLE = 2**53  # whole numbers up to here are float64 values


@in_plain_arithmetic
def fold_block(parts: Sequence[Array], fold: Fold, *, dtype: str, divisor: int | None, result: str) -> Array:
    """Return the fold of ``parts`` as a new array of dtype ``result``.

    ``dtype`` is that of the contributions. ``divisor`` is their number once all are there, None for a partial fold.
    A MEAN divides by it; with ``fold.weights`` it divides by their sum, and ``parts`` must be all contributions.
    """
    parts = [np.ascontiguousarray(part, part.dtype.newbyteorder("=")) for part in parts]
    with np.errstate(all="ignore"):  # overflow and NaN are values here, not accidents
        if fold.op in {ReduceOp.MIN, ReduceOp.MAX}:
            return _extreme(parts, fold.op).astype(result, copy=False)
        if fold.op is ReduceOp.PRODUCT:
            whole = rounded(product(parts, fold, dtype), result)
            return whole if dtype in INTEGERS or fold.accumulate == "native" else _with_one_nan(whole)
        is_whole = divisor == len(parts) or (divisor is None and result == dtype)
        if is_whole and parts[0].dtype.name == dtype and _is_exact(fold, dtype, result):
            return _exact(parts, fold, dtype, divisor or 1, result)
        if dtype in COMPLEX:
            real = [part.view(REAL[part.dtype.name]) for part in parts]
            folded = _sum(real, fold, dtype=REAL[dtype], divisor=divisor)
            return folded.astype(REAL[result], copy=False).view(result)
        return rounded(_sum(parts, fold, dtype=dtype, divisor=divisor), result)


@in_plain_arithmetic
def scale_block(part: Array, divisor: int, result: str) -> Array:
    """Return a 1-d array divided by ``divisor``, rounded once to dtype ``result``."""
    part = np.ascontiguousarray(part, part.dtype.newbyteorder("="))
    with np.errstate(all="ignore"):
        if part.dtype.name in INTEGERS:
            return _integer_mean([part], divisor).astype(result, copy=False)
        if part.dtype.name in COMPLEX:
            # Part by part: a complex quotient would make NaN of an infinite part, and round twice.
            wide = part.view(REAL[part.dtype.name]).astype("float64") / divisor
            return wide.astype(REAL[result], copy=False).view(result)
        return rounded(part.astype("float64") / divisor, result)


@in_plain_arithmetic
def add_rows(rows: Array, indices: Array, shape: tuple[int, ...]) -> Array:
    """Return an array of ``shape`` of zeros to which rows are added by index, in the accumulator's dtype, rounded once.

    Overflow on the way is decided as in a SUM.
    """
    dtype = rows.dtype.name
    accumulator = Fold(ReduceOp.SUM).accumulator_dtype(dtype)
    with np.errstate(all="ignore"):
        if dtype in COMPLEX:  # part by part: one infinite part says nothing of the other
            pairs = np.ascontiguousarray(rows, dtype)[..., None].view(REAL[dtype])
            return add_rows(pairs, indices, (*shape, 2)).view(dtype)[..., 0]
        dense = np.zeros(shape, accumulator)
        np.add.at(dense, indices, rows.astype(accumulator, copy=False))
        flat = dense.reshape(-1)
        if dtype in OVERFLOWING and (where := np.flatnonzero(~np.isfinite(flat))).size:
            scale = headroom(len(indices))
            small = np.zeros(shape)
            np.add.at(small, indices, rows.astype("float64") / scale)
            put(flat, where, small.reshape(-1)[where] * scale)
        return rounded(dense, dtype)


def _is_exact(fold: Fold, dtype: str, result: str) -> bool:
    if dtype in INTEGERS:  # whose sums are exact anyway, and their means in float64
        return fold.weights is not None or result not in {dtype, fold.result_dtype(dtype)}
    return fold.weights is not None or fold.accumulate == "exact"


def _exact(parts: list[Array], fold: Fold, dtype: str, count: int, result: str) -> Array:
    """SUM, MEAN or weighted MEAN of all contributions."""
    divisor = fold.divisor or (count if fold.op is ReduceOp.MEAN else 1)
    if dtype in COMPLEX:
        real = [part.view(REAL[dtype]) for part in parts]
        return exact_fold(real, REAL[dtype], weights=fold.weights, divisor=divisor).view(dtype)
    return exact_fold(parts, dtype, weights=fold.weights, divisor=divisor, result=result)


def _sum(parts: list[Array], fold: Fold, *, dtype: str, divisor: int | None) -> Array:
    """SUM, MEAN, or the partial sum of a MEAN, still in the accumulator's dtype."""
    mean_of = divisor if fold.op is ReduceOp.MEAN else None
    if dtype in INTEGERS:
        return _accumulate(parts, fold.accumulator_dtype(dtype)) if mean_of is None else _integer_mean(parts, mean_of)
    total = _accumulate(parts, fold.accumulator_dtype(dtype))
    if fold.accumulate == "native":
        # The count itself may not fit a 16-bit float, so even here these are divided in float32.
        wide = "float32" if total.dtype.itemsize == 2 else total.dtype  # noqa: PLR2004 - two bytes
        return total if mean_of is None else total.astype(wide, copy=False) / mean_of
    if mean_of is not None:
        total /= mean_of
    if dtype in OVERFLOWING:
        _refold_overflows(total, parts, mean_of)
    # On devices parts may be partial sums, which say nothing of the hull.
    return clamp(total, parts) if mean_of == len(parts) and dtype == "float64" else total


def _accumulate(parts: list[Array], accumulator: str) -> Array:
    total = parts[0].astype(accumulator)
    for part in parts[1:]:
        np.add(total, part.astype(accumulator, copy=False), out=total)
    return total


def _refold_overflows(total: Array, parts: list[Array], mean_of: int | None) -> None:
    """Repeat sums that are not finite on a smaller scale, on which no sum of finite values overflows.

    So in any order of the contributions, only their own infinities and NaN make a sum that is infinite or NaN.
    """
    where = np.flatnonzero(~np.isfinite(total))
    if where.size:
        scale = headroom(len(parts))
        small = _accumulate([part[where].astype("float64") / scale for part in parts], "float64")
        put(total, where, (small if mean_of is None else small / mean_of) * scale)


def clamp(mean: Any, parts: Sequence[Any], *, namespace: Any = np) -> Any:
    """Move a mean that rounding carried out of the hull of its contributions back in; zeros keep their sign.

    ``namespace``: the module of the arrays' framework.
    """
    low, high = parts[0], parts[0]
    for part in parts[1:]:
        low, high = namespace.minimum(low, part), namespace.maximum(high, part)
    return namespace.where(mean < low, low, namespace.where(mean > high, high, mean))


def _integer_mean(parts: list[Array], count: int) -> Array:
    """Return the true sum divided by ``count`` in float64, correctly rounded.

    Every contribution is q·count + r with 0 ≤ r < count, so the sum's floor is Σq + Σr // count: it fits 64 bits, and
    what overflows on the way wraps back.
    """
    accumulator = "uint64" if parts[0].dtype.kind == "u" else "int64"
    whole = np.zeros(parts[0].shape, accumulator)
    rest = np.zeros(parts[0].shape, "uint64")
    for part in parts:
        quotient, remainder = np.divmod(part.astype(accumulator), np.array(count, accumulator))
        whole += quotient
        rest += remainder.astype("uint64")
    carry, rest = np.divmod(rest, np.uint64(count))
    whole += carry.astype(accumulator)
    negative = whole < 0
    up = negative & (rest > 0)
    magnitude = np.where(negative, np.where(up, -(whole + 1), -whole), whole).astype("uint64")
    rest = np.where(up, np.uint64(count) - rest, rest)
    size = _rounded_quotient(magnitude, rest, count)
    return np.where(negative, -size, size)


def _rounded_quotient(whole: Array, rest: Array, count: int) -> Array:
    """Return (whole·count + rest) / count for uint64 ``whole``, rounded once to float64."""
    exact = whole < _EXACT_DOUBLE // count
    small = np.where(exact, whole, 0)
    direct = (small * np.uint64(count) + rest).astype("float64") / count
    if exact.all():
        return direct
    # Else take 57 bits of the quotient with a sticky last bit ("round to odd"): rounding those to 53 is rounding once.
    shift = np.frexp(whole.astype("float64"))[1].astype("int64") - 57
    right, left = np.maximum(shift, 0).astype("uint64"), np.maximum(-shift, 0).astype("uint64")
    left = np.where(exact, np.uint64(0), left)
    quotient, remainder = np.divmod(rest << left, np.uint64(count))
    bits = ((whole >> right) << left) + np.where(right > 0, np.uint64(0), quotient)
    lost = (whole & ((np.uint64(1) << right) - np.uint64(1))) | remainder | np.where(right > 0, rest, 0)
    bits |= (lost != 0).astype("uint64")
    return np.where(exact, direct, np.ldexp(bits.astype("float64"), shift))


def _extreme(parts: list[Array], op: ReduceOp) -> Array:
    """MIN or MAX: NaN wins from any replica, and -0 counts as less than +0."""
    choose = np.minimum if op is ReduceOp.MIN else np.maximum
    if parts[0].dtype.kind in "biu":
        best = parts[0].copy()
        for part in parts[1:]:
            best = choose(best, part)
        return best
    # float32 holds every 16-bit float, and NumPy's minimum is surest on its own dtypes.
    wide = [part.astype("float32") if part.dtype.itemsize == 2 else part for part in parts]  # noqa: PLR2004
    best = wide[0].copy()
    for part in wide[1:]:
        zeros = np.flatnonzero((best == 0) & (part == 0))
        signs = np.signbit(best[zeros]), np.signbit(part[zeros])
        is_negative = signs[0] | signs[1] if op is ReduceOp.MIN else signs[0] & signs[1]
        best = choose(best, part)
        best[zeros] = np.where(is_negative, -0.0, 0.0)
    return _with_one_nan(best)


def _with_one_nan(values: Array) -> Array:
    """Make every NaN, of complex numbers part by part, the canonical one."""
    real = values.view(REAL.get(values.dtype.name, values.dtype))
    real[np.isnan(real)] = np.nan
    return values
