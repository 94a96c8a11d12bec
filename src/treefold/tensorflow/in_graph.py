"""Folds of small values that stay in the graph: TensorFlow's operations, with the bits of the kernel.

A call into Python costs as much as a hundred operations. TensorFlow's arithmetic is that of the kernel but for what is
rare: its threads take denormal numbers for zero, and what overflows on the way is to be folded again. So the magnitudes
are looked at first, as whole numbers, and where one is not usual the graph leaves for the kernel after all.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
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


def folded(pair: Pair, fold: Fold, leave: Callable[[Any], Any]) -> Any:
    """Return the fold of flat tensors on the device of the first of them.

    ``leave``: calls the kernel for contributions stacked in one tensor, and returns its result.
    """
    count, dtype = len(pair.components), pair.dtype
    with tf.device(pair.places[0]):
        contributions = tf.stack(pair.components)  # Grappler would merge concatenations, and send every value alone
        usual = _are_usual(contributions, dtype, count)
        if usual is None:
            return _by_operations(contributions, fold, dtype, count)
        return tf.cond(usual, lambda: _by_operations(contributions, fold, dtype, count), lambda: leave(contributions))


def _by_operations(contributions: Any, fold: Fold, dtype: str, count: int) -> Any:
    accumulator = fold.accumulator_dtype(dtype)
    # Wide is the accumulator's own arithmetic; only float64, which has none wider, needs more.
    own = fold if accumulator == dtype else Fold(fold.op, "native")
    parts = tf.unstack(tf.cast(contributions, accumulator))
    total = fold_tensors(parts, own, dtype=accumulator, divisor=count, result=accumulator)
    return tf.cast(total, dtype)


def _are_usual(values: Any, dtype: str, count: int) -> Any:
    """Return whether every value is zero or of usual magnitude, as a symbolic scalar; None if all of the dtype are.

    Of usual magnitudes, sums and means of ``count`` values neither meet denormal numbers nor overflow on the way.
    """
    if dtype == "float16":  # added in float32, which has its denormals as normal numbers
        return None
    numpy_dtype = tf.as_dtype(dtype).as_numpy_dtype
    info: Any = ml_dtypes.finfo(numpy_dtype)  # type: ignore[no-untyped-call] # NumPy's does not know bfloat16
    doublings = math.ceil(math.log2(count))
    bits = f"uint{info.bits}"

    def doubled_bits(number: float) -> int:
        return 2 * int(np.asarray(number, numpy_dtype).view(bits))

    whole = tf.bitcast(values, bits)
    doubled = whole + whole  # the sign is gone, and the magnitude keeps its order
    # All are multiples of the last bit of the least, and so is their sum: it is zero, or its mean is above all
    # denormals. Less one, zero is the largest number of all.
    least = float(info.smallest_normal) / float(info.eps) * 2.0**doublings
    are_usual = tf.reduce_min(doubled - tf.constant(1, bits)) >= tf.constant(doubled_bits(least) - 1, bits)
    if dtype == "float32":  # added in float64, which has larger exponents
        return are_usual
    beyond = 2.0 ** (info.maxexp - 1 - doublings)
    return tf.logical_and(are_usual, tf.reduce_max(doubled) < tf.constant(doubled_bits(beyond), bits))
