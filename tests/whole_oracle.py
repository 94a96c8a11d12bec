"""Sums over whole arrays by fractions: an oracle that shares nothing with the library.

A float is given by its bits.
"""

import math
from fractions import Fraction

from exact_oracle import WIDTHS

HALF = Fraction(1, 2)


def number(dtype, bits):
    """Return the number that bits mean: a fraction, or an infinity or NaN."""
    width, precision = WIDTHS[dtype]
    most = (1 << (width - precision)) - 1
    field, rest = bits >> (precision - 1) & most, bits & ((1 << (precision - 1)) - 1)
    sign = -1 if bits >> (width - 1) else 1
    if field == most:
        return math.nan if rest else sign * math.inf
    bias = (1 << (width - precision - 1)) - 1
    size = Fraction(rest, 1 << (precision - 1)) + (field > 0)
    return sign * size * Fraction(2) ** (max(field, 1) - bias)


def nearest(dtype, value, *, is_root=False):
    """Return the bits of the float that is nearest to a fraction above 0, or to its square root; ties to even."""
    width, precision = WIDTHS[dtype]
    bias = (1 << (width - precision - 1)) - 1
    exponent = _exponent(value) // (2 if is_root else 1)
    unit = Fraction(2) ** (max(exponent, 1 - bias) - precision + 1)
    if is_root:
        scaled = value / unit**2
        whole = math.isqrt(math.floor(scaled))
        middle = (whole + HALF) ** 2
        whole += scaled > middle or (scaled == middle and whole % 2)
    else:
        whole = round(value / unit)
    infinity = ((1 << (width - precision)) - 1) << (precision - 1)
    if whole * unit >= Fraction(2) ** (bias + 1):
        return infinity
    # Bits of floats count upwards as they do, so many of each exponent.
    if whole * unit < Fraction(2) ** (1 - bias):
        return whole
    exponent = _exponent(whole * unit)
    rest = whole * unit / Fraction(2) ** exponent - 1
    return ((exponent + bias) << (precision - 1)) + int(rest * (1 << (precision - 1)))


def _exponent(value):
    """Return the exponent of the largest power of two that is not above a fraction."""
    exponent = value.numerator.bit_length() - value.denominator.bit_length()
    return exponent - (Fraction(2) ** exponent > value)


def result_bits(dtype, numbers, divisor=1, *, is_root=False):
    """Return the bits of the sum of numbers that are no signed zeros, over a divisor, or of its square root."""
    width, precision = WIDTHS[dtype]
    infinity, sign = ((1 << (width - precision)) - 1) << (precision - 1), 1 << (width - 1)
    odd = {repr(one) for one in numbers if isinstance(one, float)}
    if odd:
        if len(odd) > 1 or odd == {"nan"}:
            return infinity | 1 << (precision - 2)
        return infinity | (sign if odd == {"-inf"} else 0)
    total = sum(numbers, Fraction(0)) / divisor
    if not total:
        return 0
    return nearest(dtype, abs(total), is_root=is_root) | (sign if total < 0 else 0)
