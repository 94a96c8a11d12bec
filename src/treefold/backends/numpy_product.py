"""PRODUCT on NumPy arrays, part of the reference for every kernel: nothing overflows or underflows on the way.

Partial products are formed in the accumulator's dtype. An element of which one is lossy (no normal number although no
factor of it is 0) is multiplied again with exponents of its own, which have no bounds; only the end is rounded to what
the dtype holds.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from treefold.backends.numpy_rounding import put
from treefold.dtypes import COMPLEX, INTEGERS
from treefold.fold import Fold

Array = npt.NDArray[Any]

#: The exponent of 0, of infinities and of NaN: below all others, so that a sum takes the exponent of the other term.
_NO_EXPONENT = -(2**40)
#: Beyond the exponents of float64, so that what is scaled by it is 0 or infinite.
_BEYOND = 5000


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
        again = _scaled(parts[0][where])
        for part in parts[1:]:
            again = _times(again, _scaled(part[where]))
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
    """Return what is multiplied: the first two terms are subtracted, the others added."""
    return [(one.real, other.real), (one.imag, other.imag), (one.real, other.imag), (one.imag, other.real)]


def _is_lossy(term: Array, one: Array, other: Array) -> Array:
    """Tell where a product of two numbers lost digits, or all of them."""
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
    """Move what a mantissa has beyond 0.5 to 1 into the exponent."""
    mantissa, carry = np.frexp(mantissa)
    has_exponent = (mantissa != 0) & np.isfinite(mantissa)
    return _Scaled(mantissa, np.where(has_exponent, exponent + carry, _NO_EXPONENT))


def _times(one: _Scaled, other: _Scaled) -> _Scaled:
    return _carried(one.mantissa * other.mantissa, one.exponent + other.exponent)


def _negative(one: _Scaled) -> _Scaled:
    return _Scaled(-one.mantissa, one.exponent)


def _plus(one: _Scaled, other: _Scaled) -> _Scaled:
    """Add, rounded as float64 rounds: what is shifted out of its bounds is too small to count."""
    exponent = np.maximum(one.exponent, other.exponent)
    terms = [_ldexp(term.mantissa, term.exponent - exponent) for term in (one, other)]
    return _carried(terms[0] + terms[1], exponent)


def _in_bounds(one: _Scaled) -> Array:
    """Return the numbers in float64, rounded once more where they are denormal there."""
    return _ldexp(one.mantissa, one.exponent)


def _ldexp(mantissa: Array, exponent: Array) -> Array:
    values: Array = np.ldexp(mantissa, np.clip(exponent, -_BEYOND, _BEYOND).astype("int32"))
    return values
