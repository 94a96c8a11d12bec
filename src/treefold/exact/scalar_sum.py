"""The exact sum of whole arrays: one whole number that grows by additions and is rounded once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from treefold.backends import HostArray
from treefold.backends.numpy_exact import FORMATS, Format
from treefold.backends.numpy_whole_sums import (
    FRACTION,
    WholeSum,
    are_negative_zeros,
    exact_sum,
    whole_sum_of_integers,
)
from treefold.dtypes import FLOATS, numpy_dtype
from treefold.errors import ArgumentError
from treefold.execution import native

if native.HAS_NATIVE:
    from treefold._native import exact_sum as _exact_sum


class ScalarSum(NamedTuple):
    """The exact sum of elements, or of products of them.

    Args:
        total: The sum of the finite terms, in units of 2**-1074, for products of 2**-2148.
        elements: The number of elements.
        has_nan: Whether a term is NaN.
        has_plus: Whether a term is +infinity.
        has_minus: Whether a term is -infinity.
        are_negative_zeros: Whether every element is -0.

    """

    total: int = 0
    elements: int = 0
    has_nan: bool = False
    has_plus: bool = False
    has_minus: bool = False
    are_negative_zeros: bool = True

    def plus(self, other: ScalarSum) -> ScalarSum:
        """Return the sum of both."""
        return ScalarSum(
            self.total + other.total,
            self.elements + other.elements,
            self.has_nan or other.has_nan,
            self.has_plus or other.has_plus,
            self.has_minus or other.has_minus,
            self.are_negative_zeros and other.are_negative_zeros,
        )

    def to_json(self) -> list[Any]:
        """Return the sum in a form for JSON."""
        return [f"{self.total:x}", *self[1:]]

    @staticmethod
    def from_json(made: Sequence[Any]) -> ScalarSum:
        """Return the sum in the form that ``to_json`` has made."""
        total, *others = made
        return ScalarSum(int(total, 16), *others)

    def rounded(self, operation: str, dtype: str) -> HostArray:
        """Return the result as a 0-d array.

        Raises:
            ArgumentError: There is none: a mean of no elements, or a sum of integers that the dtype does not hold.

        """
        if operation == "mean" and not self.elements:
            raise ArgumentError("exact.mean got no elements. Ask for the mean of one at least.")
        if dtype not in FORMATS:
            return _whole(self.total >> FRACTION, dtype)
        form = FORMATS[dtype]
        infinity, sign = form.most << (form.precision - 1), 1 << (form.bits - 1)
        is_negative = self.has_minus or (not self.has_plus and self.total < 0)
        if self.has_nan or (self.has_plus and self.has_minus):
            bits = infinity | 1 << (form.precision - 2)
        elif self.has_plus or self.has_minus:
            bits = infinity | sign * is_negative
        elif not self.total:
            bits = sign * bool(self.elements and self.are_negative_zeros)
        else:
            bits = self._rounded_size(operation, form) | sign * is_negative
        return np.array(bits, form.word).view(numpy_dtype(dtype))

    def _rounded_size(self, operation: str, form: Format) -> int:
        size = abs(self.total)
        if operation == "norm":
            # One bit below the least float64, and a sticky bit for all lower ones.
            root = math.isqrt(size << 2)
            return _rounded(2 * root + (root * root < size << 2), 1, -FRACTION - 2, form)
        return _rounded(size, self.elements if operation == "mean" else 1, -FRACTION * (1 + (operation == "dot")), form)


def sum_of(dtype: str, terms: Sequence[tuple[HostArray, ...]]) -> ScalarSum:
    """Return the sum of all elements of row-major arrays of one dtype, each in a tuple, or of products of two."""
    count, is_product = sum(term[0].size for term in terms), any(len(term) > 1 for term in terms)
    if dtype not in FLOATS:
        whole = sum(whole_sum_of_integers(array) for [array] in terms)
        return ScalarSum(whole << FRACTION, count, are_negative_zeros=not count)
    if native.HAS_NATIVE:
        words, *found = _exact_sum(native.DTYPES[dtype], list(terms), is_product, native.level())
        made = WholeSum(int.from_bytes(words, "little", signed=True), *found)
    else:
        made = exact_sum(dtype, terms, is_product=is_product)
    is_zero = made == WholeSum(0, has_nan=False, has_plus=False, has_minus=False) and not is_product
    return ScalarSum(made.total, count, *made[1:], is_zero and are_negative_zeros(dtype, [one for [one] in terms]))


def _whole(total: int, dtype: str) -> HostArray:
    limits = np.iinfo(dtype)
    if not limits.min <= total <= limits.max:
        raise ArgumentError(f'The sum is {total}, which {dtype} does not hold. Ask for dtype="float64".')
    return np.array(total, dtype)


def _rounded(top: int, bottom: int, exponent: int, form: Format) -> int:
    """Return the bits of top / bottom * 2**exponent, above 0, rounded to nearest, ties to even."""
    length = top.bit_length() - bottom.bit_length() + exponent  # the bits of the whole part, or one more
    unit = max(length - form.precision, form.least_unit)
    whole, twice, divisor = _divided(top, bottom, exponent - unit)
    if whole.bit_length() > form.precision:
        unit += 1
        whole, twice, divisor = _divided(top, bottom, exponent - unit)
    whole += twice > divisor or (twice == divisor and whole & 1)
    # A carry out of the significand makes the next exponent, and the largest one infinity.
    return min(((unit - form.least_unit) << (form.precision - 1)) + whole, form.most << (form.precision - 1))


def _divided(top: int, bottom: int, shift: int) -> tuple[int, int, int]:
    """Return the whole part of top / bottom * 2**shift, twice the remainder, and the divisor that it belongs to."""
    divisor = bottom << max(-shift, 0)
    whole, rest = divmod(top << max(shift, 0), divisor)
    return whole, 2 * rest, divisor
