"""The results that a reduction may return, from the exact result in fractions and the roundings that products may have.

Nothing of treefold is used here. A result is not compared with a second implementation but with an interval. Of sums
and means it is one number: the exact one, rounded. For a product, the interval is the exact number, plus and minus what
its roundings can amount to, rounded to the dtype at both ends.
"""

import functools
import math
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Format:
    """A binary floating-point format."""

    precision: int
    smallest_exponent: int
    largest_exponent: int

    @property
    def half_ulp(self):
        """Half a unit in the last place: the largest relative change of one rounding."""
        return Fraction(1, 2**self.precision)

    @property
    def smallest_normal(self):
        return Fraction(2) ** self.smallest_exponent

    @property
    def smallest(self):
        return Fraction(2) ** (self.smallest_exponent - self.precision + 1)

    def rounded(self, exact):
        """Return the float nearest to a fraction, ties to even."""
        if exact == 0:
            return 0.0
        size = abs(exact)
        exponent = size.numerator.bit_length() - size.denominator.bit_length()
        exponent -= size < Fraction(2) ** exponent
        ulp = Fraction(2) ** (max(exponent, self.smallest_exponent) - self.precision + 1)
        nearest = round(size / ulp) * ulp
        result = math.inf if nearest >= Fraction(2) ** (self.largest_exponent + 1) else float(nearest)
        return -result if exact < 0 else result

    def holds(self, exact):
        return self.rounded(exact) == exact


FLOAT64 = Format(53, -1022, 1023)
FLOAT32 = Format(24, -126, 127)
FORMATS = {
    "float16": Format(11, -14, 15),
    "bfloat16": Format(8, -126, 127),
    "float32": FLOAT32,
    "float64": FLOAT64,
}
WIDER = {"float16": FLOAT32, "bfloat16": FLOAT32, "float32": FLOAT64, "float64": FLOAT64}
PARTS = {"complex64": "float32", "complex128": "float64"}
INTEGERS = tuple(f"{sign}int{width}" for sign in ("", "u") for width in (8, 16, 32, 64))

#: Any NaN.
NAN = (math.nan, math.nan)
#: Nothing is promised about this number, but that all kernels agree on it.
ANY = None


def is_allowed(got, allowed):
    """Tell whether a number lies in an interval; the ends of one that is a zero have a sign."""
    if allowed is ANY:
        return True
    low, high = allowed
    if math.isnan(low):
        return math.isnan(got)
    if low == high == got == 0:
        return math.copysign(1, got) in {math.copysign(1, low), math.copysign(1, high)}
    return low <= got <= high


def allowed_number(numbers, op, dtype, accumulate, weights):
    """Return the interval of the results that one element's contributions, in replica order, may have."""
    if op in {"MIN", "MAX"}:
        return _extreme(numbers, op)
    if weights is not None:
        return _exact_mean(numbers, weights, sum(map(Fraction, weights)), _mean_format(dtype))
    if dtype in INTEGERS:
        return _integer(numbers, op, dtype)
    if accumulate == "native":
        return _stepwise(numbers, op, FORMATS[dtype])
    if op == "PRODUCT":
        return _product(numbers, FORMATS[dtype], WIDER[dtype])
    return _exact_mean(numbers, [1] * len(numbers), len(numbers) if op == "MEAN" else 1, FORMATS[dtype])


def _mean_format(dtype):
    """Return the format of a mean: of integers, one that is wide enough for theirs."""
    return FORMATS[dtype] if dtype in FORMATS else FLOAT32 if dtype.endswith(("int8", "int16")) else FLOAT64


def allowed_complex(numbers, op, dtype, accumulate, weights):
    """Return the intervals of the real and of the imaginary part."""
    part = PARTS[dtype]
    if op != "PRODUCT":
        parts = [number.real for number in numbers], [number.imag for number in numbers]
        return tuple(allowed_number(each, op, part, accumulate, weights) for each in parts)
    wide = WIDER[part] if accumulate == "exact" else FORMATS[part]
    if not all(math.isfinite(number.real) and math.isfinite(number.imag) for number in numbers):
        return ANY, ANY  # parts of infinities cancel as the order of multiplication has it
    real, imaginary, size = Fraction(numbers[0].real), Fraction(numbers[0].imag), Fraction(1)
    for index, number in enumerate(numbers):
        factor = Fraction(number.real), Fraction(number.imag)
        if index:
            real, imaginary = real * factor[0] - imaginary * factor[1], real * factor[1] + imaginary * factor[0]
        size *= abs(factor[0]) + abs(factor[1])
        if not _is_far_from_the_ends(size, factor, wide):
            return ANY, ANY
    slack = 4 * len(numbers) * wide.half_ulp * size
    return tuple(_around(exact, slack, FORMATS[part]) for exact in (real, imaginary))


def _is_far_from_the_ends(size, factor, form):
    """Tell whether products of such size, and their differences, can neither overflow nor lose bits as denormals."""
    room = Fraction(2) ** (form.precision + 10)
    smallest, largest = form.smallest_normal * room, Fraction(2) ** form.largest_exponent / room
    return smallest < size < largest and all(part == 0 or smallest < abs(part) < largest for part in factor)


def _extreme(numbers, op):
    if any(math.isnan(number) for number in numbers):
        return NAN
    best = (min if op == "MIN" else max)(numbers, key=lambda number: (number, math.copysign(1, number)))
    return best, best


def _integer(numbers, op, dtype):
    if op == "MEAN":
        mean = _mean_format(dtype).rounded(Fraction(sum(numbers), len(numbers)))
        return mean, mean
    width = int(dtype.partition("int")[2])
    wrapped = (sum(numbers) if op == "SUM" else math.prod(numbers)) % 2**width
    if not dtype.startswith("u") and wrapped >= 2 ** (width - 1):
        wrapped -= 2**width
    return wrapped, wrapped


def _special_sum(numbers):
    """Return the sum or mean if it needs no arithmetic: of NaN and infinities, and of zeros alone."""
    if any(math.isnan(number) for number in numbers) or {math.inf, -math.inf} <= set(numbers):
        return NAN
    for infinity in (math.inf, -math.inf):
        if infinity in numbers:
            return infinity, infinity
    if not any(numbers):
        zero = -0.0 if all(math.copysign(1, number) < 0 for number in numbers) else 0.0
        return zero, zero
    return None


def _exact_mean(numbers, weights, divisor, form):
    """Σwᵢxᵢ over a divisor, rounded once: one number. A weight of 0 leaves its number out."""
    chosen = [(Fraction(weight), number) for weight, number in zip(weights, numbers, strict=True) if weight]
    special = _special_sum([number for _, number in chosen])
    if special is not None:
        return special
    exact = sum(weight * Fraction(number) for weight, number in chosen) / divisor
    result = math.copysign(form.rounded(exact), -1 if exact < 0 else 1)
    return result, result


def _product(numbers, form, wide):
    if any(math.isnan(number) for number in numbers):
        return NAN
    sign = math.prod(math.copysign(1, number) for number in numbers)
    has_zero = not all(numbers)
    if any(math.isinf(number) for number in numbers):
        return NAN if has_zero else (sign * math.inf, sign * math.inf)
    if has_zero:
        return sign * 0.0, sign * 0.0
    exact, is_exact = Fraction(1), True
    for number in numbers:
        exact *= Fraction(number)
        is_exact = is_exact and wide.holds(exact)
    slack = 0 if is_exact else len(numbers) * wide.half_ulp * abs(exact)
    if not is_exact and abs(exact) < wide.smallest_normal:
        slack += wide.smallest  # the last two partial products may both be denormal
    low, high = _around(exact, slack, form)
    return (low or sign * 0.0), (high or sign * 0.0)


def _stepwise(numbers, op, form):
    """Accumulate in the dtype itself, rounding every step: overflows stay, so this is one number."""
    step = (lambda one, other: one * other) if op == "PRODUCT" else (lambda one, other: one + other)
    # Python's float64 has more than twice the bits of the narrower ones, so that rounding to it first changes nothing.
    total = functools.reduce(lambda one, other: _float_rounded(step(one, other), form), numbers)
    if op == "MEAN":
        total = _float_rounded(total / len(numbers), form)
    return total, total


def _float_rounded(number, form):
    if number == 0 or not math.isfinite(number) or form is FLOAT64:
        return number
    rounded = form.rounded(Fraction(number))
    return math.copysign(rounded, number)


def _around(exact, slack, form):
    return form.rounded(exact - slack), form.rounded(exact + slack)
