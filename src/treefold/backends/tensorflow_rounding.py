"""Rounding as TensorFlow ops: once, also where a dtype is reached by way of another."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from treefold.dtypes import HALVES


def rounded(values: Any, dtype: str) -> Any:
    """Round once. TensorFlow goes from float64 to 16 bits by way of float32, which would be twice."""
    if dtype in HALVES:
        values = to_accumulator(values, "float32")
    return tf.cast(values, dtype)


def to_accumulator(values: Any, dtype: str) -> Any:
    """Return float64 values in an accumulator; float32 ones such that rounding them on, to 16 bits, is rounding once.

    Cut off, with the last bit set where something was lost ("round to odd"); what is too large is infinite.
    """
    narrow = tf.cast(values, dtype)
    if values.dtype != tf.float64 or dtype != "float32":
        return narrow
    back = tf.cast(narrow, "float64")
    is_inexact = (back != values) & tf.math.is_finite(narrow)
    is_larger = is_inexact & (tf.abs(back) > tf.abs(values))
    bits = tf.bitcast(narrow, "int32") - tf.cast(is_larger, "int32")
    return tf.bitcast(tf.bitwise.bitwise_or(bits, tf.cast(is_inexact, "int32")), "float32")
