"""The arithmetic of a fold as TensorFlow ops: for XLA, saved graphs and GPUs, where no kernel of host memory runs.

Sums and means are accumulated wide, in replica order, and rounded once, while the reference, ``numpy_fold``, is exact.
TensorFlow decides whether denormals are flushed, and the last bit of the MEAN of 64-bit integers beyond 2^53.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from treefold.backends.numpy_fold import clamp
from treefold.dtypes import COMPLEX, HALVES, INTEGERS, OVERFLOWING, REAL
from treefold.fold import Fold, headroom
from treefold.reduce_op import ReduceOp

_MANY = 2.0**64  # more rows than any tensor has
_EXACT_DOUBLE = 2**53  # whole numbers up to here are float64 values
#: The smallest normal number of each accumulator.
_LEAST = {"float32": 2.0**-126, "float64": 2.0**-1022}
#: The exponent of 0, of infinities and of NaN: below all others, so that a sum takes the exponent of the other term.
_NO_EXPONENT = -(2**40)
_EXPONENT_BITS, _EXPONENT_OF_HALF = 0x7FF << 52, 1022 << 52


def fold_tensors(parts: Sequence[Any], fold: Fold, *, dtype: str, divisor: int | None, result: str) -> Any:
    """Return the fold of 1-d tensors of one device, as ``ArrayBackend.combine`` describes it."""
    if fold.op in {ReduceOp.MIN, ReduceOp.MAX}:
        return _extreme(parts, fold.op, dtype)
    if dtype in COMPLEX and fold.op is not ReduceOp.PRODUCT:
        real, imaginary = (
            fold_tensors([view(part) for part in parts], fold, dtype=REAL[dtype], divisor=divisor, result=REAL[result])
            for view in (tf.math.real, tf.math.imag)
        )
        return tf.complex(real, imaginary)
    accumulator = fold.accumulator_dtype(dtype)
    if fold.op is ReduceOp.PRODUCT:
        return rounded(product(parts, fold, dtype), result)
    if fold.op is ReduceOp.MEAN and divisor is not None:
        return rounded(_mean(parts, fold, dtype, divisor), result)
    total = _accumulated(parts, accumulator)
    return rounded(_refolded(total, parts, dtype, 1) if fold.accumulate == "exact" else total, result)


def scale_tensor(part: Any, divisor: int, result: str) -> Any:
    """Return a 1-d tensor divided by ``divisor``, rounded once to dtype ``result``."""
    dtype = part.dtype.name
    if dtype in INTEGERS:
        return tf.cast(_integer_mean([part], divisor, dtype), result)
    if dtype in COMPLEX:
        parts = (_divided(tf.cast(view(part), "float64"), divisor) for view in (tf.math.real, tf.math.imag))
        return tf.complex(*(tf.cast(wide, REAL[result]) for wide in parts))
    return rounded(_divided(tf.cast(part, "float64"), divisor), result)


def add_rows(rows: Any, indices: Any, num_rows: int, dtype: str) -> Any:
    """Return zeros with rows added by index, in the accumulator's dtype, rounded once."""
    if dtype in COMPLEX:
        parts = [add_rows(view(rows), indices, num_rows, REAL[dtype]) for view in (tf.math.real, tf.math.imag)]
        return tf.complex(*parts)
    accumulator = Fold(ReduceOp.SUM).accumulator_dtype(dtype)
    dense = tf.math.unsorted_segment_sum(tf.cast(rows, accumulator), indices, num_rows)
    if dtype in OVERFLOWING:
        small = tf.math.unsorted_segment_sum(tf.cast(rows, "float64") / _MANY, indices, num_rows)
        dense = tf.where(tf.math.is_finite(dense), dense, to_accumulator(small * _MANY, accumulator))
    return rounded(dense, dtype)


def _added(one: Any, two: Any) -> Any:
    return _as_it_is(one) + two


def _accumulated(parts: Sequence[Any], accumulator: str, combine: Callable[[Any, Any], Any] = _added) -> Any:
    return functools.reduce(combine, (tf.cast(part, accumulator) for part in parts))


def _divided(values: Any, divisor: float) -> Any:
    return values / _as_it_is(tf.constant(divisor, values.dtype))


def _as_it_is(value: Any) -> Any:
    """Return a value behind an op that Grappler does not optimise.

    Grappler would reorder a chain of sums, and replace a division by a product with the rounded reciprocal.
    """
    return tf.raw_ops.PlaceholderWithDefault(input=value, shape=value.shape)


def _mean(parts: Sequence[Any], fold: Fold, dtype: str, divisor: int) -> Any:
    if fold.weights is not None:
        # A weight of 0 leaves its replica out, NaN and all.
        pairs = zip(fold.scaled_weights, parts, strict=True)
        chosen = [(weight, tf.cast(part, "float64")) for weight, part in pairs if weight]
        total = _divided(_accumulated([weight * part for weight, part in chosen], "float64"), fold.weight_sum)
        scale = 2.0 * headroom(len(chosen))  # weights are below 2
        small = _accumulated([weight * (part / scale) for weight, part in chosen], "float64")
        again = _divided(small, fold.weight_sum) * scale
        mean = tf.where(tf.math.is_finite(total), total, again)
        return clamp(mean, [part for _, part in chosen], namespace=tf)
    if dtype in INTEGERS:
        return _integer_mean(parts, divisor, dtype)
    total = _accumulated(parts, fold.accumulator_dtype(dtype))
    if fold.accumulate == "native":
        # The count itself may not fit a 16-bit float, so even here these are divided in float32.
        return _divided(tf.cast(total, "float32") if dtype in HALVES else total, divisor)
    mean = _refolded(_divided(total, divisor), parts, dtype, divisor)
    # Parts may be partial sums, which do not bound the mean.
    return clamp(mean, parts, namespace=tf) if divisor == len(parts) and dtype == "float64" else mean


def _refolded(total: Any, parts: Sequence[Any], dtype: str, divisor: int) -> Any:
    """Repeat sums that are not finite on a smaller scale, on which no sum of finite values overflows."""
    if dtype not in OVERFLOWING:
        return total
    scale = float(headroom(len(parts)))
    small = _accumulated([tf.cast(part, "float64") / scale for part in parts], "float64")
    return tf.where(tf.math.is_finite(total), total, to_accumulator(_divided(small, divisor) * scale, total.dtype.name))


def _integer_mean(parts: Sequence[Any], divisor: int, dtype: str) -> Any:
    """Return the true sum over ``divisor`` in float64; its floor, Σq + Σr // count, fits 64 bits."""
    accumulator = Fold(ReduceOp.SUM).accumulator_dtype(dtype)  # as in numpy_fold
    if not dtype.endswith("64"):
        return _divided(tf.cast(_accumulated(parts, accumulator), "float64"), divisor)
    count = tf.constant(divisor, accumulator)
    wide = [tf.cast(part, accumulator) for part in parts]
    whole = _accumulated([tf.math.floordiv(part, count) for part in wide], accumulator)
    rest = _accumulated([tf.math.floormod(part, count) for part in wide], accumulator)
    whole, rest = whole + tf.math.floordiv(rest, count), tf.math.floormod(rest, count)
    small = whole < tf.constant(_EXACT_DOUBLE // divisor, accumulator)
    if accumulator == "int64":
        small = tf.logical_and(small, whole > -tf.constant(_EXACT_DOUBLE // divisor, accumulator))
    direct = _divided(tf.cast(whole * count + rest, "float64"), divisor)
    return tf.where(small, direct, tf.cast(whole, "float64") + _divided(tf.cast(rest, "float64"), divisor))


def _extreme(parts: Sequence[Any], op: ReduceOp, dtype: str) -> Any:
    """Return MIN or MAX: NaN wins from any replica, and -0 counts as less than +0."""
    is_min = op is ReduceOp.MIN
    if dtype == "bool":
        return _accumulated(parts, "bool", tf.logical_and if is_min else tf.logical_or)
    choose = tf.minimum if is_min else tf.maximum
    if dtype in INTEGERS:
        return _accumulated(parts, dtype, choose)
    sign = -1.0 if is_min else 1.0

    def best_of(one: Any, two: Any) -> Any:
        # The sum of two zeros is +0 unless both are -0, and the sum of anything and NaN is NaN.
        is_special = ((one == 0) & (two == 0)) | tf.math.is_nan(one) | tf.math.is_nan(two)
        return tf.where(is_special, sign * (sign * one + sign * two), choose(one, two))

    # float32 holds every 16-bit float.
    return tf.cast(_accumulated(parts, "float32" if dtype in HALVES else dtype, best_of), dtype)


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
    again = functools.reduce(_times, (_scaled(tf.cast(part, "float64")) for part in parts))
    is_lossy |= tf.logical_not(tf.math.is_finite(total))
    return tf.where(is_lossy, to_accumulator(_in_bounds(again), accumulator), total)


def _complex_product(factors: Sequence[Any]) -> Any:
    """Multiply part by part with separate exponents; if no term is out of range, the result is the usual one."""
    real, imaginary = (_scaled(view(factors[0])) for view in (tf.math.real, tf.math.imag))
    for factor in factors[1:]:
        x, y = (_scaled(view(factor)) for view in (tf.math.real, tf.math.imag))
        minus = _ScaledTensor(-imaginary.mantissa, imaginary.exponent)
        real, imaginary = _plus(_times(real, x), _times(minus, y)), _plus(_times(real, y), _times(imaginary, x))
    return tf.complex(_in_bounds(real), _in_bounds(imaginary))


class _ScaledTensor(NamedTuple):
    """Numbers mantissa · 2^exponent; mantissas are 0.5 to 1, or 0, infinite or NaN."""

    mantissa: Any
    exponent: Any


def _scaled(values: Any) -> _ScaledTensor:
    return _carried(values, tf.zeros_like(values, "int64"))


def _carried(values: Any, exponent: Any) -> _ScaledTensor:
    """Scale mantissas to 0.5 to 1, and adjust the exponents: TensorFlow has no frexp."""
    is_denormal = tf.abs(values) < _LEAST["float64"]
    bits = tf.bitcast(tf.where(is_denormal, values * 2.0**54, values), "int64")
    shift = tf.bitwise.right_shift(bits & _EXPONENT_BITS, tf.constant(52, "int64")) - 1022
    mantissa = tf.bitcast((bits & ~_EXPONENT_BITS) | _EXPONENT_OF_HALF, "float64")
    has_exponent = tf.math.is_finite(values) & (values != 0)
    carried = exponent + tf.where(is_denormal, shift - 54, shift)
    return _ScaledTensor(
        tf.where(has_exponent, mantissa, values),
        tf.where(has_exponent, carried, tf.constant(_NO_EXPONENT, "int64")),
    )


def _times(one: _ScaledTensor, other: _ScaledTensor) -> _ScaledTensor:
    return _carried(one.mantissa * other.mantissa, one.exponent + other.exponent)


def _plus(one: _ScaledTensor, other: _ScaledTensor) -> _ScaledTensor:
    """Add, rounded as float64 rounds: terms scaled beyond its range are too small to count."""
    exponent = tf.maximum(one.exponent, other.exponent)
    terms = [_ldexp(term.mantissa, term.exponent - exponent) for term in (one, other)]
    return _carried(terms[0] + terms[1], exponent)


def _in_bounds(one: _ScaledTensor) -> Any:
    return _ldexp(one.mantissa, one.exponent)


def _ldexp(mantissa: Any, exponent: Any) -> Any:
    """Return mantissa · 2^exponent, rounded once: the first half of the exponent is exact."""
    exponent = tf.clip_by_value(exponent, tf.constant(-1130, "int64"), tf.constant(1030, "int64"))
    half = tf.bitwise.right_shift(exponent, tf.constant(1, "int64"))
    return mantissa * _power_of_two(half) * _power_of_two(exponent - half)


def _power_of_two(exponent: Any) -> Any:
    return tf.bitcast(tf.bitwise.left_shift(exponent + 1023, tf.constant(52, "int64")), "float64")


def rounded(values: Any, dtype: str) -> Any:
    """Round once. TensorFlow converts float64 to 16 bits through float32, which rounds twice."""
    if dtype in HALVES:
        values = to_accumulator(values, "float32")
    return tf.cast(values, dtype)


def to_accumulator(values: Any, dtype: str) -> Any:
    """Return float64 values in an accumulator's dtype; in float32 such that rounding to 16 bits next is one rounding.

    Values are truncated, and the last bit is set if anything was lost ("round to odd"); too large ones become infinite.
    """
    narrow = tf.cast(values, dtype)
    if values.dtype != tf.float64 or dtype != "float32":
        return narrow
    back = tf.cast(narrow, "float64")
    is_inexact = (back != values) & tf.math.is_finite(narrow)
    is_larger = is_inexact & (tf.abs(back) > tf.abs(values))
    bits = tf.bitcast(narrow, "int32") - tf.cast(is_larger, "int32")
    return tf.bitcast(tf.bitwise.bitwise_or(bits, tf.cast(is_inexact, "int32")), "float32")
