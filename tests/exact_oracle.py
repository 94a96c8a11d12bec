"""Sums and means of floats by fractions, rounded by whole numbers: an oracle that shares nothing with the library.

A float is given by its bits. ``WIDTHS``: of each dtype, all its bits and those of its significand, with the hidden one.
"""

from fractions import Fraction

WIDTHS = {"float16": (16, 11), "bfloat16": (16, 8), "float32": (32, 24), "float64": (64, 53)}


def bits_of(dtype, replicas, weights, divisor):
    """Return the bits of the weighted sum of one element over a divisor; replicas of weight 0 do not count."""
    width, precision = WIDTHS[dtype]
    most = (1 << (width - precision)) - 1
    infinity, sign = most << (precision - 1), 1 << (width - 1)
    counted = [(bits, weight) for bits, weight in zip(replicas, weights, strict=True) if weight]
    if any(bits & (sign - 1) > infinity for bits, _ in counted):
        return infinity | 1 << (precision - 2)
    infinite = {bits for bits, _ in counted if bits & (sign - 1) == infinity}
    if infinite:
        return infinity | 1 << (precision - 2) if len(infinite) == 2 else infinite.pop()
    total = sum((_value(bits, width, precision) * weight for bits, weight in counted), Fraction(0)) / divisor
    if total == 0:
        return sign if all(bits == sign for bits, _ in counted) else 0
    return sign * (total < 0) | _rounded(abs(total), width, precision)


def _least(width, precision):
    """Return the exponent of the least number above zero."""
    return 3 - precision - (1 << (width - precision - 1))


def _value(bits, width, precision):
    field, fraction = bits >> (precision - 1) & ((1 << (width - precision)) - 1), bits & ((1 << (precision - 1)) - 1)
    significand = fraction | (field > 0) << (precision - 1)
    value = significand * Fraction(2) ** (max(field, 1) - 1 + _least(width, precision))
    return -value if bits >> (width - 1) else value


def _rounded(value, width, precision):
    """Return the bits of a value above zero, rounded to nearest, ties to even."""
    exponent = value.numerator.bit_length() - value.denominator.bit_length()
    exponent -= Fraction(2) ** exponent > value
    unit = max(exponent - precision + 1, _least(width, precision))
    scaled = value / Fraction(2) ** unit
    whole = scaled.numerator // scaled.denominator
    rest = scaled - whole
    whole += rest > Fraction(1, 2) or (rest == Fraction(1, 2) and whole % 2)
    most = ((1 << (width - precision)) - 1) << (precision - 1)
    return min(((unit - _least(width, precision)) << (precision - 1)) + whole, most)
