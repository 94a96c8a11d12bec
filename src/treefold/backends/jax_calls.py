"""Calls from JAX's compiled programs into Python, in the order of the program.

JAX gives the call its own arrays, which are read as NumPy's where they lie. The call returns NumPy's arrays. To make
one of JAX's, or to compute with one, would wait for the program that waits for the call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import io_callback

from treefold.backends.tracing import Like
from treefold.errors import ArgumentError
from treefold.fold import Fold


def call_in_order(
    function: Callable[..., Any],
    arrays: Sequence[Any],
    likes: Sequence[Like],
    result_dtype: Callable[[Fold, str], str],
) -> list[Any]:
    """Add a call to the program that is being traced, after all earlier ones. It has no gradient.

    ``result_dtype``: that of a fold of arrays of a dtype.

    Raises:
        ArgumentError: a result's length is not known before the call; JAX's programs have fixed shapes.

    """
    if any(like.axis is not None for like in likes):
        raise ArgumentError.fixed_shapes()
    shapes = [jax.ShapeDtypeStruct(like.array.shape, _dtype(like, result_dtype)) for like in likes]

    def call(*given: Any) -> list[Any]:
        made = function(*map(np.asarray, given))
        return [np.asarray(array, shape.dtype) for array, shape in zip(made, shapes, strict=True)]

    made: list[Any] = io_callback(call, shapes, *arrays, ordered=True)
    return made


def _dtype(like: Like, result_dtype: Callable[[Fold, str], str]) -> Any:
    own = like.array.dtype
    return own if like.fold is None else np.dtype(result_dtype(like.fold, own.name))
