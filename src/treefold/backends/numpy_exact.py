"""Sums and means of floats as exact values, rounded once: the reference, computed with integers from the bits.

A float is a whole number of units of the least subnormal: its significand, shifted left by its exponent. Sums are kept
in limbs of 32 bits. Each limb is a signed 64-bit number, so that carries can wait until all contributions are added.
Floating point is used only where exponents prove that it is exact (``_fold_near``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from treefold.backends.plain_arithmetic import in_plain_arithmetic
from treefold.dtypes import numpy_dtype
from treefold.fold import Fold
from treefold.reduce_op import ReduceOp

Array = npt.NDArray[Any]

_LIMB, _MASK = 32, (1 << 32) - 1
#: The most limbs in which a number below 2**64 has bits, wherever it begins.
_REACH = 3
#: Elements that are folded at a time, so that they stay in the cache.
_BLOCK = 8192
#: Bits of a float64's significand, and those of its words that hold the upper half of it.
_DOUBLE, _UPPER = 53, np.uint64((1 << 64) - (1 << 27))


class Format(NamedTuple):
    """A binary format of IEEE 754: its bits, the bits of its significand with the hidden one, and its integers."""

    bits: int
    precision: int

    @property
    def word(self) -> str:
        """The dtype of the integers that have its bits."""
        return f"uint{self.bits}"

    @property
    def most(self) -> int:
        """The exponent field of infinities and NaN."""
        return (1 << (self.bits - self.precision)) - 1

    @property
    def least_unit(self) -> int:
        """The exponent of two of the least subnormal number."""
        return 3 - self.precision - (1 << (self.bits - self.precision - 1))


FORMATS = {"float16": Format(16, 11), "bfloat16": Format(16, 8), "float32": Format(32, 24), "float64": Format(64, 53)}


class Limbs:
    """One whole number for each element, in limbs from the least significant one on."""

    def __init__(self, count: int, length: int) -> None:
        self.limbs = [np.zeros(length, np.int64) for _ in range(count)]

    def add(self, magnitudes: Array, shifts: Array, are_negative: Array) -> None:
        """Add whole numbers below 2**64, each shifted left by its number of bits."""
        sign = np.where(are_negative, np.int64(-1), np.int64(1))
        first, offset = shifts >> 5, (shifts & 31).astype(np.uint64)
        # The parts of a number in the limbs that it reaches.
        low = magnitudes & np.uint64(_MASK)
        high = magnitudes >> np.uint64(_LIMB)
        low, high = low << offset, high << offset
        middle = (low >> np.uint64(_LIMB)) + (high & np.uint64(_MASK))
        parts = low & np.uint64(_MASK), middle, high >> np.uint64(_LIMB)
        signed = [part.astype(np.int64) * sign for part in parts]
        least, most = (int(first.min()), int(first.max())) if first.size else (0, -1)
        for begin in range(least, most + 1):
            here = slice(None) if least == most else first == begin
            for index, part in enumerate(signed):
                if begin + index < len(self.limbs):
                    self.limbs[begin + index][here] += part[here]

    def normalise(self) -> Array:
        """Carry, so that the limbs hold the magnitudes; return which numbers are negative."""
        carry = self._carry()
        are_negative = carry < 0
        if are_negative.any():
            sign = np.where(are_negative, np.int64(-1), np.int64(1))
            # The complement: limbs of a negative number hold 2**bits more than the number.
            self.limbs = [limb * sign for limb in self.limbs]
            self._carry()
        return are_negative

    def _carry(self) -> Array:
        carry = np.zeros_like(self.limbs[0])
        for index, limb in enumerate(self.limbs):
            total = limb + carry
            self.limbs[index], carry = total & _MASK, total >> _LIMB
        return carry


class Numbers(NamedTuple):
    """The floats of one contribution: significands in units of the least subnormal, shifted left, and their signs.

    Infinities and NaN have significands of 0.
    """

    significands: Array
    shifts: Array
    are_negative: Array
    are_infinite: Array
    are_nan: Array


@in_plain_arithmetic
def exact_fold(
    parts: Sequence[Array], dtype: str, *, weights: Sequence[int] | None, divisor: int, result: str | None = None
) -> Array:
    """Return the sum of weighted contributions over ``divisor``, correctly rounded.

    Infinities and NaN follow IEEE 754, and every NaN is the canonical one. A zero is -0 if all contributions are, or if
    a negative value is rounded to it, as in a quotient.

    Args:
        parts: Flat arrays of ``dtype``, at least one.
        dtype: The dtype of the contributions.
        weights: Whole numbers, one for each part, not all 0; None: all are 1. A weight of 0 leaves its contribution
            out.
        divisor: Above 0: the count for a mean, the sum of weights for a weighted one.
        result: The dtype of the result; None: that of the contributions, or ``Fold.result_dtype`` for a mean of
            integers.

    """
    result = result or Fold(ReduceOp.MEAN).result_dtype(dtype)
    form = FORMATS[result]
    source = FORMATS.get(dtype, form)
    chosen = [(part, weight) for part, weight in zip(parts, weights or [1] * len(parts), strict=True) if weight]
    arrays, kept = [part for part, _ in chosen], [weight for _, weight in chosen]
    rounded = np.empty_like(parts[0], dtype=numpy_dtype(result))
    are_left = np.ones(rounded.shape, bool)
    if weights is None and dtype == result and _divides_near(form, divisor):
        for begin in range(0, len(rounded), _BLOCK):
            block = slice(begin, begin + _BLOCK)
            are_left[block] = ~_fold_near([part[block] for part in arrays], form, divisor, rounded[block])
    places = np.flatnonzero(are_left)
    for begin in range(0, len(places), _BLOCK):
        here = places[begin : begin + _BLOCK]
        rounded[here] = _fold_any([part[here] for part in arrays], kept, source, form, divisor).view(rounded.dtype)
    return rounded


def _divides_near(form: Format, divisor: int) -> bool:
    """Return whether a quotient in float64 is right: rounded, if the dtype has bits to spare, else exact."""
    return divisor.bit_length() <= _LIMB - 3 if form.precision < _DOUBLE else not divisor & (divisor - 1)


def _fold_near(parts: Sequence[Array], form: Format, divisor: int, rounded: Array) -> Array:
    """Write sums over a divisor where near exponents prove that additions in float64 are exact; return where.

    A sum is a multiple of the unit of its least contribution, and below 2**53 units it is a float64. Exponents are read
    as integers, so the proof needs no flag of the processor. A quotient is rounded to float64 and then to the dtype; if
    the sum had bits to spare, that equals one rounding (Figueroa). Values of float64 are added in two halves.
    """
    words = [part.view(form.word) for part in parts]
    one = np.asarray(1, form.word)
    least, most, doubled = ~np.zeros_like(words[0]), np.zeros_like(words[0]), np.empty_like(words[0])
    for word in words:
        np.left_shift(word, one, out=doubled)  # without signs; zeros, less one, are the largest number
        np.maximum(most, doubled, out=most)
        doubled -= one
        np.minimum(least, doubled, out=least)
    are_zeros = most == 0
    least, most = (least + one) >> form.precision, most >> form.precision
    is_double = form.precision == _DOUBLE
    width = (_DOUBLE // 2 if is_double else _DOUBLE - form.precision) - (len(parts) - 1).bit_length()
    are_near: Array = (most <= least + np.asarray(max(width, 0), form.word)) & (most < form.most)
    if is_double:  # nor may a half of a part, a quotient or a sum leave the normal numbers
        are_near &= (least > divisor.bit_length() + _DOUBLE) & (most < form.most - len(parts).bit_length())
    elif form != FORMATS["float16"]:  # its subnormals are normal in float64, and NumPy converts them with integers
        are_near &= least > 0
    are_near |= are_zeros
    if width < 0 or not are_near.any():
        return np.zeros_like(are_near)
    with np.errstate(all="ignore"):  # elsewhere there may be anything
        if is_double:
            np.divide(_sum_of_halves(parts, words), divisor, out=rounded)
        else:
            total = parts[0].astype(np.float64)
            for part in parts[1:]:
                total += part
            rounded[...] = _narrow(total / divisor, form).view(rounded.dtype)
    return are_near


def _sum_of_halves(parts: Sequence[Array], words: Sequence[Array]) -> Array:
    high: Array = (words[0] & _UPPER).view(np.float64)
    low: Array = parts[0] - high
    upper = np.empty_like(words[0])
    half = upper.view(np.float64)
    for part, word in zip(parts[1:], words[1:], strict=True):
        np.bitwise_and(word, _UPPER, out=upper)
        high += half
        np.subtract(part, half, out=half)
        low += half
    np.add(high, low, out=high, where=low != 0)  # the sum of zeros keeps its sign
    return high


def _narrow(values: Array, form: Format) -> Array:
    """Return the bits of a narrower format for float64 values, rounded once."""
    shift, unit = np.uint64(_DOUBLE - form.precision), np.uint64(1 << (form.precision - 1))
    words = values.view(np.uint64)
    # Add half a unit, less one if the last bit is even, so that ties go to even; then change the exponent's bias.
    bits = words >> shift
    bits &= np.uint64(1)
    bits += words
    bits += (np.uint64(1) << (shift - np.uint64(1))) - np.uint64(1)
    bits >>= shift
    signs = bits >> np.uint64(2 * _LIMB - 1 - int(shift))
    bits &= (np.uint64(1) << np.uint64(2 * _LIMB - 1 - int(shift))) - np.uint64(1)
    bits -= unit * np.uint64((FORMATS["float64"].most - form.most) // 2)
    are_others = bits - unit >= unit * np.uint64(form.most - 1)  # zero, subnormal or too large
    signs <<= np.uint64(form.bits - 1)
    bits |= signs
    made = bits.astype(form.word)
    if are_others.any():
        made[are_others] = _narrow_any(values[are_others], form)
    return made


def _narrow_any(values: Array, form: Format) -> Array:
    """Return the bits of a narrower format for float64 values, which are zeros or normal, rounded once."""
    words = values.view(np.uint64)
    fields = (words >> np.uint64(_DOUBLE - 1)).view(np.int64) & FORMATS["float64"].most
    significands = (words.view(np.int64) & ((1 << (_DOUBLE - 1)) - 1)) | 1 << (_DOUBLE - 1)
    # The exponent of the last bit, and of the last that is kept.
    last = fields + FORMATS["float64"].least_unit - 1
    unit = np.maximum(last + _DOUBLE - form.precision, form.least_unit)
    cut = np.minimum(unit - last, _DOUBLE + 1)
    kept = significands >> cut
    half = significands >> (cut - 1) & 1
    kept += half & (kept | (significands & ((1 << (cut - 1)) - 1) != 0))
    bits = np.minimum(((unit - form.least_unit) << (form.precision - 1)) + kept, form.most << (form.precision - 1))
    signs = (words >> np.uint64(2 * _LIMB - form.bits)) & np.uint64(1 << (form.bits - 1))
    return (np.where(fields > 0, bits, 0).view(np.uint64) | signs).astype(form.word)


def _fold_any(parts: Sequence[Array], weights: Sequence[int], source: Format, form: Format, divisor: int) -> Array:
    """Return weighted sums over a divisor, for any exponents."""
    numbers = [read_numbers(part, source) for part in parts]
    # Zeros have no exponent of their own.
    shifts = [one.shifts[one.significands > 0] for one in numbers]
    least = min((int(shift.min()) for shift in shifts if shift.size), default=0)
    most = max((int(shift.max()) for shift in shifts if shift.size), default=0)
    room = most - least + 2 * _LIMB + sum(weights).bit_length() + 1
    total = Limbs(-(-room // _LIMB) + _REACH, len(parts[0]))
    for one, weight in zip(numbers, weights, strict=True):
        places = np.clip(one.shifts - least, 0, most - least)
        for magnitudes, at in products(one.significands, weight):
            total.add(magnitudes, places + at, one.are_negative)
    bits = rounded_quotient(total, divisor, source.least_unit + least, form)
    are_negative = np.logical_and.reduce([one.are_negative & (one.significands == 0) for one in numbers])
    bits |= are_negative.astype(np.uint64) << np.uint64(form.bits - 1)
    plus = np.logical_or.reduce([one.are_infinite & ~one.are_negative for one in numbers])
    minus = np.logical_or.reduce([one.are_infinite & one.are_negative for one in numbers])
    are_nan = np.logical_or.reduce([one.are_nan for one in numbers])
    return with_specials(bits, plus, minus, are_nan, form).astype(form.word)


def rounded_quotient(total: Limbs, divisor: int, unit: int, form: Format) -> Array:
    """Return the bits of ``total``, in units of 2**unit, over a divisor, rounded once. ``total`` is overwritten."""
    # Limbs below the point: enough bits of the quotient to decide its rounding.
    below = 0 if divisor == 1 else -(-(divisor.bit_length() + form.precision + 2) // _LIMB)
    total.limbs = [np.zeros_like(total.limbs[0])] * below + total.limbs
    are_negative = total.normalise()
    is_left = _divide(total, divisor)
    bits = _round(total, is_left, unit - below * _LIMB, form)
    signed: Array = bits | are_negative.astype(np.uint64) << np.uint64(form.bits - 1)
    return signed


def read_numbers(part: Array, form: Format) -> Numbers:
    """Return the parts of floats, or of integers in units of a format."""
    if part.dtype.kind in "iu":
        is_negative, none = part < 0, np.zeros(part.shape, bool)
        bits = part.astype(np.int64).view(np.uint64)
        magnitudes = np.where(is_negative, ~bits + np.uint64(1), bits)
        return Numbers(magnitudes, np.full(part.shape, -form.least_unit), is_negative, none, none)
    words = part.view(form.word).astype(np.uint64)
    fields = ((words >> np.uint64(form.precision - 1)) & np.uint64(form.most)).astype(np.int64)
    hidden = np.uint64(1 << (form.precision - 1))
    fractions = words & (hidden - np.uint64(1))
    is_special = fields == form.most
    significands = np.where(is_special, 0, np.where(fields > 0, fractions | hidden, fractions))
    are_nan = is_special & (fractions > 0)
    is_negative = words >> np.uint64(form.bits - 1) != 0
    return Numbers(significands, np.maximum(fields, 1) - 1, is_negative, is_special & ~are_nan, are_nan)


def products(significands: Array, weight: int) -> list[tuple[Array, int]]:
    """Return the product with a weight as numbers below 2**64, each with a shift, for the limbs of both factors."""
    if weight == 1:
        return [(significands, 0)]
    products = []
    low, high = significands & np.uint64(_MASK), significands >> np.uint64(_LIMB)
    for at in range(0, weight.bit_length(), _LIMB):
        limb = np.uint64((weight >> at) & _MASK)
        products += [(low * limb, at), (high * limb, at + _LIMB)]
    return products


def _divide(total: Limbs, divisor: int) -> Array:
    """Divide, limb by limb from the top, and return where there is a remainder."""
    rest = np.zeros_like(total.limbs[0])
    if divisor.bit_length() >= _LIMB:  # a rest and another limb would not fit 64 bits with a sign
        return _divide_long(total, divisor)
    if divisor > 1:
        for index in reversed(range(len(total.limbs))):
            total.limbs[index], rest = np.divmod((rest << _LIMB) | total.limbs[index], divisor)
    are_left: Array = rest != 0
    return are_left


def _divide_long(total: Limbs, divisor: int) -> Array:
    """Divide by a number of any size: in Python, element by element."""
    limbs = np.array(total.limbs, np.int64)
    is_left = np.zeros(limbs.shape[1], bool)
    for element in range(limbs.shape[1]):
        whole = sum(int(limb) << (_LIMB * index) for index, limb in enumerate(limbs[:, element]))
        whole, rest = divmod(whole, divisor)
        is_left[element] = rest != 0
        limbs[:, element] = [(whole >> (_LIMB * index)) & _MASK for index in range(len(limbs))]
    total.limbs = list(limbs)
    return is_left


def _round(total: Limbs, are_left: Array, unit: int, form: Format) -> Array:
    """Return the bits of magnitudes in units of 2**unit, to nearest, ties to even; infinity if too large.

    ``are_left``: where there is a remainder below the last limb.
    """
    length = np.zeros_like(total.limbs[0])
    for index, limb in enumerate(total.limbs):
        length = np.where(limb > 0, index * _LIMB + _bit_length(limb), length)
    # Everything below this bit is cut off.
    cut = np.maximum(length - form.precision, form.least_unit - unit)
    kept, half, is_more = np.zeros_like(length), np.zeros_like(length), are_left.copy()
    for index, limb in enumerate(total.limbs):
        above = cut - index * _LIMB
        up, down = np.clip(-above, 0, 2 * _LIMB - 1), np.clip(above, 0, _LIMB)
        kept |= np.where(limb > 0, (limb << up) >> down, 0)
        at = np.clip(above - 1, 0, _LIMB)
        half |= np.where(above > 0, (limb >> at) & 1, 0)
        is_more |= limb & ((np.int64(1) << at) - 1) != 0
    kept += half & (is_more | kept)
    exponent = cut + unit - form.least_unit
    is_too_large = exponent >= form.most - 1
    # A carry out of the significand makes the next exponent, and the largest one infinity.
    bits = (np.where(is_too_large, 0, exponent) << (form.precision - 1)) + kept
    bits = np.where(is_too_large, form.most << (form.precision - 1), bits)
    return np.where(length > 0, bits, 0).astype(np.uint64)


def _bit_length(limbs: Array) -> Array:
    """Return the number of bits of numbers below 2**32."""
    length = np.zeros_like(limbs)
    for step in (16, 8, 4, 2, 1):
        is_longer = limbs >> step > 0
        length += is_longer * step
        limbs = np.where(is_longer, limbs >> step, limbs)
    return length + (limbs > 0)


def with_specials(bits: Array, plus: Array, minus: Array, are_nan: Array, form: Format) -> Array:
    """Return the bits, replaced by those of an infinity or NaN where a contribution is one."""
    infinity, sign = np.uint64(form.most << (form.precision - 1)), np.uint64(1 << (form.bits - 1))
    bits = np.where(plus, infinity, np.where(minus, infinity | sign, bits))
    return np.where(are_nan | (plus & minus), infinity | np.uint64(1 << (form.precision - 2)), bits)
