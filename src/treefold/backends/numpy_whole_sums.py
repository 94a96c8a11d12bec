"""Sums over whole arrays, and sums of products, as whole numbers: the reference, computed with integers from the bits.

Significands of one exponent are added in 64 bits, and those sums in Python's integers. Nothing is computed in floating
point, so the thread's floating-point mode does not matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from treefold.backends.numpy_exact import FORMATS, Format
from treefold.dtypes import UNSIGNED

Array = npt.NDArray[Any]

#: A sum is a multiple of 2**-FRACTION, the least float64; a sum of products one of 2**(-2 * FRACTION).
FRACTION = -FORMATS["float64"].least_unit
#: Elements at a time: the sum of that many 32-bit numbers fits 64 bits.
_BLOCK = 1 << 16
_MASK = (1 << 32) - 1
#: Bits of the lower part of a significand of float64: products of two parts fit 64 bits.
_LOW = 26


class WholeSum(NamedTuple):
    """The sum of the finite terms, in units of ``FRACTION``, and which special terms there were."""

    total: int
    has_nan: bool
    has_plus: bool
    has_minus: bool


def exact_sum(dtype: str, terms: Iterable[Sequence[Array]], *, is_product: bool) -> WholeSum:
    """Return the sum of all elements of arrays of floats, each in a tuple, or of the products of pairs of arrays."""
    form, total, found = FORMATS[dtype], 0, np.zeros(3, bool)
    for block in _blocks(terms):
        factors = [_Floats.read(part, form) for part in block]
        are_special = np.logical_or.reduce([one.are_special for one in factors])
        if are_special.any():
            found |= _specials([one.take(are_special) for one in factors])
            factors = [one.take(~are_special) for one in factors]
        places = factors[0].places + (factors[1].places if is_product else 0)
        unit = (form.least_unit + FRACTION) * len(factors)
        for shift, numbers in _products(*[one.numbers for one in factors], is_double=form.bits > 32):  # noqa: PLR2004
            total += _by_place(places, numbers) << (unit + shift)
    return WholeSum(total, *found.tolist())


def whole_sum_of_integers(array: Array) -> int:
    """Return the sum of integers or bools, of any size."""
    total = 0
    for [part] in _blocks([(array,)]):
        whole = part.view(np.uint8) if part.dtype == bool else part
        wide = whole.astype(np.uint64 if whole.dtype.name in UNSIGNED else np.int64)
        high = wide >> wide.dtype.type(32)
        total += (int(high.sum()) << 32) + int((wide & wide.dtype.type(_MASK)).sum())
    return total


def are_negative_zeros(dtype: str, arrays: Iterable[Array]) -> bool:
    """Return whether all elements of arrays of floats are -0."""
    form = FORMATS[dtype]
    sign = 1 << (form.bits - 1)
    return all(bool((part.view(form.word) == sign).all()) for [part] in _blocks((one,) for one in arrays))


class _Floats(NamedTuple):
    """Floats by their bits: signed significands, their fractions, the shift of each, and which are infinite or NaN."""

    numbers: Array
    fractions: Array
    places: Array
    are_special: Array

    @classmethod
    def read(cls, part: Array, form: Format) -> _Floats:
        bits = part.view(form.word).astype(np.uint64).view(np.int64)
        hidden = 1 << (form.precision - 1)
        fields = (bits >> (form.precision - 1)) & form.most
        fractions = bits & (hidden - 1)
        sizes = fractions | np.where(fields > 0, hidden, 0)
        signs = np.where((bits >> (form.bits - 1)) & 1, -1, 1)
        return cls(sizes * signs, fractions, np.maximum(fields, 1) - 1, fields == form.most)

    def take(self, where: Array) -> _Floats:
        return _Floats(*[column[where] for column in self])


def _specials(factors: Sequence[_Floats]) -> Array:
    """Return whether some product with an infinite or NaN factor is NaN, +infinity or -infinity."""
    signs = np.prod([np.sign(one.numbers) for one in factors], axis=0)  # 0 for 0 times infinity
    are_nan = (signs == 0) | np.logical_or.reduce([one.are_special & (one.fractions != 0) for one in factors])
    return np.array([are_nan.any(), (~are_nan & (signs > 0)).any(), (~are_nan & (signs < 0)).any()])


def _products(first: Array, second: Array | None = None, *, is_double: bool) -> Iterator[tuple[int, Array]]:
    """Yield 64-bit numbers, each with a shift, that add up to the product, or to the only factor."""
    if second is None:
        yield 0, first
    elif not is_double:
        yield 0, first * second
    else:
        parts = [(one & ((1 << _LOW) - 1), one >> _LOW) for one in (first, second)]
        for one, low_or_high in enumerate(parts[0]):
            for other, its_low_or_high in enumerate(parts[1]):
                yield (one + other) * _LOW, low_or_high * its_low_or_high


def _by_place(places: Array, numbers: Array) -> int:
    """Return the sum of whole numbers, each shifted left by its place."""
    low, high = np.zeros((2, int(places.max(initial=0)) + 1), np.int64)
    np.add.at(low, places, numbers & _MASK)
    np.add.at(high, places, numbers >> 32)
    return sum(((int(high[at]) << 32) + int(low[at])) << int(at) for at in np.flatnonzero(low | high))


def _blocks(terms: Iterable[Sequence[Array]]) -> Iterator[list[Array]]:
    """Yield the same short range of each array of a term, one range after the other."""
    for term in terms:
        flat = [array.reshape(-1) for array in term]
        for begin in range(0, flat[0].size, _BLOCK):
            yield [one[begin : begin + _BLOCK] for one in flat]
