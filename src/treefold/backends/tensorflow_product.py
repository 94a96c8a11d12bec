"""PRODUCT as TensorFlow ops: nothing overflows or underflows on the way, as ``numpy_product`` has it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from treefold.backends.tensorflow_rounding import to_accumulator
from treefold.dtypes import COMPLEX, INTEGERS
from treefold.fold import Fold

#: The smallest normal number of each accumulator.
_LEAST = {"float32": 2.0**-126, "float64": 2.0**-1022}
#: The exponent of 0, of infinities and of NaN: below all others, so that a sum takes the exponent of the other term.
_NO_EXPONENT = -(2**40)
_EXPONENT_BITS, _EXPONENT_OF_HALF = 0x7FF << 52, 1022 << 52


def product(parts: Sequence[Any], fold: Fold, dtype: str) -> Any:
    """Return the product of 1-d tensors of one dtype, in the accumulator's dtype."""
    accumulator = fold.accumulator_dtype(dtype)
    factors = [tf.cast(part, accumulator) for part in parts]
    is_bounded = dtype in INTEGERS or fold.accumulate == "native"
    if dtype in COMPLEX and not is_bounded:
        return _complex_product(factors)
    total, least = factors[0], tf.constant(_LEAST.get(accumulator, 0), accumulator)
    is_lossy = tf.zeros_like(total, "bool")
    for factor in factors[1:]:
        term = total * factor
        if not is_bounded:
            is_lossy |= (tf.abs(term) < least) & (total != 0) & (factor != 0)
        total = term
    if is_bounded:
        return total
    again = _scaled(tf.cast(parts[0], "float64"))
    for part in parts[1:]:
        again = _times(again, _scaled(tf.cast(part, "float64")))
    is_lossy |= tf.logical_not(tf.math.is_finite(total))
    return tf.where(is_lossy, to_accumulator(_in_bounds(again), accumulator), total)


def _complex_product(factors: Sequence[Any]) -> Any:
    """Multiply part by part with exponents of their own: the same as without where no term leaves its bounds."""
    real, imaginary = (_scaled(view(factors[0])) for view in (tf.math.real, tf.math.imag))
    for factor in factors[1:]:
        x, y = (_scaled(view(factor)) for view in (tf.math.real, tf.math.imag))
        minus = _Scaled(-imaginary.mantissa, imaginary.exponent)
        real, imaginary = _plus(_times(real, x), _times(minus, y)), _plus(_times(real, y), _times(imaginary, x))
    return tf.complex(_in_bounds(real), _in_bounds(imaginary))


class _Scaled(NamedTuple):
    """Numbers mantissa · 2^exponent; mantissas are 0.5 to 1, or 0, infinite or NaN."""

    mantissa: Any
    exponent: Any


def _scaled(values: Any) -> _Scaled:
    return _carried(values, tf.zeros_like(values, "int64"))


def _carried(values: Any, exponent: Any) -> _Scaled:
    """Move what a mantissa has beyond 0.5 to 1 into the exponent: TensorFlow has no frexp."""
    is_denormal = tf.abs(values) < _LEAST["float64"]
    bits = tf.bitcast(tf.where(is_denormal, values * 2.0**54, values), "int64")
    shift = tf.bitwise.right_shift(bits & _EXPONENT_BITS, tf.constant(52, "int64")) - 1022
    mantissa = tf.bitcast((bits & ~_EXPONENT_BITS) | _EXPONENT_OF_HALF, "float64")
    has_exponent = tf.math.is_finite(values) & (values != 0)
    carried = exponent + tf.where(is_denormal, shift - 54, shift)
    return _Scaled(
        tf.where(has_exponent, mantissa, values),
        tf.where(has_exponent, carried, tf.constant(_NO_EXPONENT, "int64")),
    )


def _times(one: _Scaled, other: _Scaled) -> _Scaled:
    return _carried(one.mantissa * other.mantissa, one.exponent + other.exponent)


def _plus(one: _Scaled, other: _Scaled) -> _Scaled:
    """Add, rounded as float64 rounds: what is shifted out of its bounds is too small to count."""
    exponent = tf.maximum(one.exponent, other.exponent)
    terms = [_ldexp(term.mantissa, term.exponent - exponent) for term in (one, other)]
    return _carried(terms[0] + terms[1], exponent)


def _in_bounds(one: _Scaled) -> Any:
    return _ldexp(one.mantissa, one.exponent)


def _ldexp(mantissa: Any, exponent: Any) -> Any:
    """Return mantissa · 2^exponent, rounded once: half of the exponent first, which loses nothing."""
    exponent = tf.clip_by_value(exponent, tf.constant(-1130, "int64"), tf.constant(1030, "int64"))
    half = tf.bitwise.right_shift(exponent, tf.constant(1, "int64"))
    return mantissa * _power_of_two(half) * _power_of_two(exponent - half)


def _power_of_two(exponent: Any) -> Any:
    return tf.bitcast(tf.bitwise.left_shift(exponent + 1023, tf.constant(52, "int64")), "float64")
