"""Folds of small values that stay in the graph: TensorFlow's operations, with the bits of the kernel.

A call into Python costs as much as a hundred operations. TensorFlow's arithmetic is that of the kernel but for what is
rare: its threads take denormal numbers for zero, and what overflows on the way is to be folded again. So the magnitudes
are looked at first, as whole numbers, and where one is not usual the graph leaves for the kernel after all.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from treefold.backends.tensorflow_fold import fold_tensors
from treefold.dtypes import FLOATS
from treefold.fold import Fold
from treefold.reduce_op import ReduceOp
from treefold.tensorflow.values import Pair, is_alike

# More replicas, and the range of usual magnitudes would shrink to nothing.
_MOST_REPLICAS = 64


def is_foldable(pair: Pair, fold: Fold) -> bool:
    """Whether TensorFlow's operations give the kernel's bits where magnitudes are usual."""
    is_sum = fold.op in {ReduceOp.SUM, ReduceOp.MEAN} and fold.accumulate == "wide"
    return is_sum and pair.dtype in FLOATS and len(pair.components) <= _MOST_REPLICAS and is_alike(pair)


def folded(pair: Pair, fold: Fold, leave: Callable[[Any, int], Any]) -> Any:
    """Return the fold of flat tensors on the device of the first of them.

    ``leave``: calls the kernel for so many contributions laid behind each other, and returns its result.
    """
    count, dtype = len(pair.components), pair.dtype
    with tf.device(pair.places[0]):
        contributions = tf.concat(pair.components, 0)
        usual = _are_usual(contributions, _RANGES.get(dtype), count)
        if usual is None:
            return _by_operations(contributions, fold, dtype, count)
        return tf.cond(
            usual, lambda: _by_operations(contributions, fold, dtype, count), lambda: leave(contributions, count)
        )


def _by_operations(contributions: Any, fold: Fold, dtype: str, count: int) -> Any:
    accumulator = fold.accumulator_dtype(dtype)
    # Wide is the accumulator's own arithmetic; only float64, which has none wider, needs more.
    own = fold if accumulator == dtype else Fold(fold.op, "native")
    parts = tf.split(tf.cast(contributions, accumulator), count)
    total = fold_tensors(parts, own, dtype=accumulator, divisor=count, result=accumulator)
    return tf.cast(total, dtype)


@dataclass(frozen=True)
class _Range:
    """Of which magnitudes sums and means neither lose a bit to denormals nor overflow on the way.

    ``bits``: the unsigned integer of the same width; ``mantissa``: its lower bits; ``bias``: what is added to
    exponents; ``overflows``: whether the accumulator has no larger exponents than the dtype.
    """

    bits: str
    mantissa: int
    bias: int
    overflows: bool

    def least(self, count: int) -> int:
        """Return the bits of the least magnitude of which ``count`` may be added and averaged.

        All are multiples of its last bit, and so is their sum: it is zero, or its mean is above all denormals.
        """
        return (1 + self.mantissa + _doublings(count)) << self.mantissa

    def beyond(self, count: int) -> int:
        """Return the bits of the magnitude below which no sum of ``count`` overflows."""
        return (2 * self.bias - _doublings(count)) << self.mantissa


# float16 is not among them: float32, in which it is added, has all its denormals as normal numbers.
_RANGES = {
    "bfloat16": _Range("uint16", 7, 127, overflows=True),
    "float32": _Range("uint32", 23, 127, overflows=False),
    "float64": _Range("uint64", 52, 1023, overflows=True),
}


def _doublings(count: int) -> int:
    return math.ceil(math.log2(count))


def _are_usual(values: Any, usual: _Range | None, count: int) -> Any:
    """Return whether every value is zero or of usual magnitude, as a symbolic scalar; None if all of the dtype are."""
    if usual is None:
        return None
    whole = tf.bitcast(values, usual.bits)
    doubled = whole + whole  # the sign is gone, and the magnitude keeps its order
    # Zero becomes the largest number of all.
    smallest = tf.reduce_min(doubled - tf.constant(1, usual.bits))
    are_usual = smallest >= tf.constant(2 * usual.least(count) - 1, usual.bits)
    if not usual.overflows:
        return are_usual
    return tf.logical_and(are_usual, tf.reduce_max(doubled) < tf.constant(2 * usual.beyond(count), usual.bits))
