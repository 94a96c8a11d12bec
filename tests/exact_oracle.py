"""Sums and means of floats by whole numbers: an oracle that shares nothing with the library. Also kinds of floats.

A float is given by its bits. ``WIDTHS``: of each dtype, all its bits and those of its significand, with the hidden one.
"""

import numpy as np

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


def middle(form):
    """Return the exponent field of 1."""
    width, precision = form
    return (1 << (width - precision - 1)) - 1


def floats(rng, form, fields):
    """Return the bits of numbers of either sign with these exponent fields and any significand."""
    width, precision = form
    significands = rng.integers(1 << (precision - 1), size=fields.shape, dtype=np.uint64)
    signs = rng.integers(2, size=fields.shape, dtype=np.uint64) << np.uint64(width - 1)
    return signs | fields.astype(np.uint64) << np.uint64(precision - 1) | significands


def any_bits(rng, form, shape):
    """Any exponent, infinities and NaN with payloads."""
    return rng.integers(1 << 64, size=shape, dtype=np.uint64) >> np.uint64(64 - form[0])


def near_one(rng, form, shape):
    """Exponents that differ by six."""
    return floats(rng, form, middle(form) + rng.integers(-3, 4, shape))


def cancelling(rng, form, shape):
    """Exponents that differ by twenty or fewer, and half of the contributions cancel but for their last bits."""
    reach = min(10, middle(form) // 2)
    bits = floats(rng, form, middle(form) + rng.integers(-reach, reach + 1, shape))
    half = len(bits) // 2
    bits[half : 2 * half] = (
        bits[:half] ^ np.uint64(1 << (form[0] - 1)) ^ rng.integers(2, size=bits[:half].shape).astype(np.uint64)
    )
    return rng.permuted(bits, axis=0)


def subnormal(rng, form, shape):
    """Around the least normal number."""
    return floats(rng, form, rng.integers(0, 3, shape))


def least(rng, form, shape):
    """Below the least normal number alone: sums may need more bits than their quotients."""
    return floats(rng, form, np.zeros(shape, np.uint64))


def huge(rng, form, shape):
    """Return numbers with intermediate sums that overflow."""
    return floats(rng, form, 2 * middle(form) - rng.integers(0, 2, shape))


def ties(rng, form, shape):
    """Few bits, as far apart as a significand is long: ties, ties with a speck, and zeros of either sign."""
    precision = form[1]
    fields = middle(form) + rng.choice([-precision - 1, -precision, -1, 0, 1, precision, -middle(form)], shape)
    few = rng.integers(2, size=shape, dtype=np.uint64) << np.uint64(precision - 2)
    bits = floats(rng, form, np.clip(fields, 0, 2 * middle(form)))
    keep = np.uint64(1 << (form[0] - 1)) | np.uint64(((1 << (form[0] - precision)) - 1) << (precision - 1))
    return np.where(fields > 0, bits & keep | few, bits & np.uint64(1 << (form[0] - 1)))


def at_the_edge(rng, form, shape):
    """Two exponents, so far apart that additions in the wider dtype just cease to be exact."""
    precision = form[1]
    spread = {11: 13, 8: 16, 24: 29, 53: 26}[precision] + rng.integers(-8, 3)
    low = max(middle(form) - int(spread) // 2, 1)
    return floats(rng, form, np.minimum(low + int(spread) * rng.integers(0, 2, shape), 2 * middle(form)))


KINDS = (any_bits, near_one, cancelling, subnormal, least, huge, ties, at_the_edge)
