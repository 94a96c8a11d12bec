"""The arithmetic of a fold on NumPy arrays: the reference for every other kernel in host memory, bit for bit.

One call folds one block: 1-d arrays of equal length, one per contribution, in replica order. Sums and means of whole
contributions are exact, rounded once (``numpy_exact``); partial folds are rounded to their accumulator. No fold starts
from +0.0, so -0.0 survives.

Partial products are formed in the accumulator's dtype. One is lossy if it is not a normal number although none of its
factors is 0. An element with a lossy partial product is multiplied again, with separate, unbounded exponents, and only
its last product is rounded to the dtype. So no PRODUCT overflows or underflows before its end.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from treefold.backends.numpy_exact import exact_fold
from treefold.backends.plain_arithmetic import in_plain_arithmetic
from treefold.dtypes import COMPLEX, INTEGERS, OVERFLOWING, REAL
from treefold.fold import Fold, headroom
from treefold.reduce_op import ReduceOp

Array = npt.NDArray[Any]

_EXACT_DOUBLE = 2**53  # whole numbers up to here are float64 values
#: The exponent of 0, of infinities and of NaN: below all others, so that a sum takes the exponent of the other term.
_NO_EXPONENT = -(2**40)
#: Beyond the exponents of float64: scaling by it gives 0 or infinity.
_BEYOND = 5000


@in_plain_arithmetic
def fold_block(parts: Sequence[Array], fold: Fold, *, dtype: str, divisor: int | None, result: str) -> Array:
    """Return the fold of ``parts`` as a new array.

    Args:
        parts: 1-d arrays of equal length; with weights, all contributions.
        fold: The arithmetic.
        dtype: The dtype of the contributions.
        divisor: The number of contributions once all are there; None for a partial fold. A MEAN divides by it or, with
            weights, by their sum.
        result: The dtype of the result.

    """
    parts = [np.ascontiguousarray(part, part.dtype.newbyteorder("=")) for part in parts]
    with np.errstate(all="ignore"):  # overflow and NaN are ordinary values here
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
    """Return zeros of ``shape`` with rows added by index, in the accumulator's dtype, rounded once.

    As in a SUM, partial sums that overflow do not make a finite result infinite.
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
    if dtype in INTEGERS:  # sums of integers are always exact, and so are their means in float64
        return fold.weights is not None or result not in {dtype, fold.result_dtype(dtype)}
    return fold.weights is not None or fold.accumulate == "exact"


def _exact(parts: list[Array], fold: Fold, dtype: str, count: int, result: str) -> Array:
    """Return the SUM, MEAN or weighted MEAN of all contributions."""
    divisor = fold.divisor or (count if fold.op is ReduceOp.MEAN else 1)
    if dtype in COMPLEX:
        real = [part.view(REAL[dtype]) for part in parts]
        return exact_fold(real, REAL[dtype], weights=fold.weights, divisor=divisor).view(dtype)
    return exact_fold(parts, dtype, weights=fold.weights, divisor=divisor, result=result)


def _sum(parts: list[Array], fold: Fold, *, dtype: str, divisor: int | None) -> Array:
    """Return the SUM, MEAN, or partial sum of a MEAN, still in the accumulator's dtype."""
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
    # On devices parts may be partial sums, which do not bound the mean.
    return clamp(total, parts) if mean_of == len(parts) and dtype == "float64" else total


def _accumulate(parts: list[Array], accumulator: str) -> Array:
    total = parts[0].astype(accumulator)
    for part in parts[1:]:
        np.add(total, part.astype(accumulator, copy=False), out=total)
    return total


def _refold_overflows(total: Array, parts: list[Array], mean_of: int | None) -> None:
    """Repeat sums that are not finite on a smaller scale, where no sum of finite values overflows.

    So, in any order, a sum is infinite or NaN only because of its contributions' own infinities and NaN.
    """
    where = np.flatnonzero(~np.isfinite(total))
    if where.size:
        scale = headroom(len(parts))
        small = _accumulate([part[where].astype("float64") / scale for part in parts], "float64")
        put(total, where, (small if mean_of is None else small / mean_of) * scale)


def clamp(mean: Any, parts: Sequence[Any], *, namespace: Any = np) -> Any:
    """Clamp a mean to the range of its contributions, which rounding may have left; zeros keep their sign.

    ``namespace``: the module of the arrays' framework.
    """
    low, high = functools.reduce(namespace.minimum, parts), functools.reduce(namespace.maximum, parts)
    return namespace.where(mean < low, low, namespace.where(mean > high, high, mean))


def _integer_mean(parts: list[Array], count: int) -> Array:
    """Return the true sum divided by ``count`` in float64, correctly rounded.

    Every contribution is q·count + r with 0 ≤ r < count. The mean's floor is then Σq + Σr // count, which fits 64 bits;
    partial sums that overflow wrap back.
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
    """Return MIN or MAX: NaN wins from any replica, and -0 counts as less than +0."""
    choose = np.minimum if op is ReduceOp.MIN else np.maximum
    if parts[0].dtype.kind in "biu":
        return functools.reduce(choose, parts[1:], parts[0].copy())
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


def product(parts: list[Array], fold: Fold, dtype: str) -> Array:
    """Return the product of 1-d arrays of one dtype, in the accumulator's dtype."""
    accumulator = fold.accumulator_dtype(dtype)
    factors = [part.astype(accumulator, copy=False) for part in parts]
    is_bounded = dtype in INTEGERS or fold.accumulate == "native"  # wraps, overflows and underflows as the dtype does
    if dtype in COMPLEX:
        return _complex_product(factors, is_bounded=is_bounded)
    total, is_lossy = factors[0].copy(), np.zeros(factors[0].shape, bool)
    for factor in factors[1:]:
        term = total * factor
        if not is_bounded:
            is_lossy |= _is_lossy(term, total, factor)
        total = term
    if is_bounded:
        return total
    where = np.flatnonzero(is_lossy | ~np.isfinite(total))
    if where.size:
        again = functools.reduce(_times, (_scaled(part[where]) for part in parts))
        put(total, where, _in_bounds(again))
    return total


def _complex_product(factors: list[Array], *, is_bounded: bool) -> Array:
    """Multiply part by part: NumPy's own loop uses fused multiply-add on some machines only."""
    total = factors[0].copy()
    is_lossy = np.zeros(total.shape, bool)
    for factor in factors[1:]:
        pairs = _part_pairs(total, factor)
        terms = [one * other for one, other in pairs]
        if not is_bounded:
            for (one, other), term in zip(pairs, terms, strict=True):
                is_lossy |= _is_lossy(term, one, other)
        total.real, total.imag = terms[0] - terms[1], terms[2] + terms[3]
    if is_bounded:
        return total
    where = np.flatnonzero(is_lossy | ~np.isfinite(total))
    if where.size:
        real, imaginary = _scaled(factors[0].real[where]), _scaled(factors[0].imag[where])
        for factor in factors[1:]:
            x, y = _scaled(factor.real[where]), _scaled(factor.imag[where])
            real, imaginary = (
                _plus(_times(real, x), _negative(_times(imaginary, y))),
                _plus(_times(real, y), _times(imaginary, x)),
            )
        total.real[where], total.imag[where] = _in_bounds(real), _in_bounds(imaginary)
    return total


def _part_pairs(one: Array, other: Array) -> list[tuple[Array, Array]]:
    """Return the factors of the four real products: the first two are subtracted, the others added."""
    return [(one.real, other.real), (one.imag, other.imag), (one.real, other.imag), (one.imag, other.real)]


def _is_lossy(term: Array, one: Array, other: Array) -> Array:
    """Return where a product of two numbers lost digits, or all of them."""
    form, size = np.finfo(term.dtype), np.abs(term)
    is_normal = (size >= form.tiny) & (size <= form.max)
    is_lossy: Array = ~is_normal & (one != 0) & (other != 0)
    return is_lossy


class _Scaled(NamedTuple):
    """Numbers mantissa · 2^exponent; mantissas are 0.5 to 1, or 0, infinite or NaN."""

    mantissa: Array
    exponent: Array


def _scaled(values: Array) -> _Scaled:
    return _carried(values.astype("float64"), np.zeros(values.shape, "int64"))


def _carried(mantissa: Array, exponent: Array) -> _Scaled:
    """Scale mantissas to 0.5 to 1, and adjust the exponents."""
    mantissa, carry = np.frexp(mantissa)
    has_exponent = (mantissa != 0) & np.isfinite(mantissa)
    return _Scaled(mantissa, np.where(has_exponent, exponent + carry, _NO_EXPONENT))


def _times(one: _Scaled, other: _Scaled) -> _Scaled:
    return _carried(one.mantissa * other.mantissa, one.exponent + other.exponent)


def _negative(one: _Scaled) -> _Scaled:
    return _Scaled(-one.mantissa, one.exponent)


def _plus(one: _Scaled, other: _Scaled) -> _Scaled:
    """Add, rounded as float64 rounds: terms scaled beyond its range are too small to count."""
    exponent = np.maximum(one.exponent, other.exponent)
    terms = [_ldexp(term.mantissa, term.exponent - exponent) for term in (one, other)]
    return _carried(terms[0] + terms[1], exponent)


def _in_bounds(one: _Scaled) -> Array:
    """Return the numbers in float64, rounded once more where they are denormal there."""
    return _ldexp(one.mantissa, one.exponent)


def _ldexp(mantissa: Array, exponent: Array) -> Array:
    values: Array = np.ldexp(mantissa, np.clip(exponent, -_BEYOND, _BEYOND).astype("int32"))
    return values


def rounded(values: Array, dtype: str) -> Array:
    """Round once. ml_dtypes converts float64 to bfloat16 through float32, which rounds twice."""
    if dtype == "bfloat16" and values.dtype == np.float64:
        values = _halfway_float32(values)
    return values.astype(dtype, copy=False)


def put(total: Array, where: npt.NDArray[np.intp], values: Array) -> None:
    """Write float64 values into an accumulator; in float32, one for 16-bit floats, they are rounded to odd."""
    total[where] = _halfway_float32(values) if total.dtype == np.float32 else values


def _halfway_float32(values: Array) -> Array:
    """Return float64 values in float32 such that rounding them to 16 bits next is one rounding ("round to odd").

    Values are truncated, and the last bit is set if anything was lost, so none becomes a tie of 16-bit floats that was
    none before. A value too large for float32 becomes infinite, because a finite number would later pass for a right
    partial sum.
    """
    narrow = values.astype("float32")
    is_inexact = (narrow != values) & np.isfinite(narrow)
    is_larger = is_inexact & (np.abs(narrow) > np.abs(values))
    bits = narrow.view("uint32")
    bits -= is_larger
    bits |= is_inexact
    return narrow
