"""Sums and means of floats by whole numbers: an oracle that shares nothing with the library.

A float is given by its bits. ``WIDTHS``: of each dtype, all its bits and those of its significand, with the hidden one.
"""

WIDTHS = {"float16": (16, 11), "bfloat16": (16, 8), "float32": (32, 24), "float64": (64, 53)}


def bits_of(dtype, replicas, weights, divisor):
    """Return the bits of the weighted sum of one element over a divisor; replicas of weight 0 do not count."""
    width, precision = WIDTHS[dtype]
    infinity, sign = ((1 << (width - precision)) - 1) << (precision - 1), 1 << (width - 1)
    total, are_infinite, are_least, quiet = 0, set(), True, infinity | 1 << (precision - 2)
    for bits, weight in zip(replicas, weights, strict=True):
        if not weight:
            continue
        size = bits & (sign - 1)
        if size > infinity:
            return quiet
        if size == infinity:
            are_infinite.add(bits)
        are_least = are_least and bits == sign
        value = _units(size, precision) * weight
        total += -value if bits & sign else value
    if are_infinite:
        return quiet if len(are_infinite) == 2 else are_infinite.pop()
    if total == 0:
        return sign if are_least else 0
    return sign * (total < 0) | _rounded(abs(total), divisor, precision, infinity)


def _units(size, precision):
    """Return how many of the least numbers above zero a finite number without its sign is."""
    field = size >> (precision - 1)
    return size if field < 2 else (size & ((1 << (precision - 1)) - 1) | 1 << (precision - 1)) << (field - 1)


def _rounded(total, divisor, precision, infinity):
    """Return the bits of a quotient above zero, in the least numbers, rounded to nearest, ties to even."""
    length = total.bit_length() - divisor.bit_length()
    if (total << max(-length, 0)) >= (divisor << max(length, 0)):
        length += 1  # the bits before the point
    unit = max(length - precision, 0)
    whole, rest = divmod(total, divisor << unit)
    twice, whole_unit = 2 * rest, divisor << unit
    whole += twice > whole_unit or (twice == whole_unit and whole % 2)
    return min((unit << (precision - 1)) + whole, infinity)
