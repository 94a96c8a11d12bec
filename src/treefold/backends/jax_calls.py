"""Calls from JAX's compiled programs into Python, in the order of the program.

A call reads and writes the memory of the program. JAX's ordered callback alone would not do: it copies large arrays,
on a thread of JAX's that may be the one which runs the program. On one core the copy then waits for ever. So the
ordered callbacks get a number, and only keep the order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import io_callback
from jax.experimental.buffer_callback import buffer_callback

from treefold.backends.tracing import Like
from treefold.errors import ArgumentError
from treefold.fold import Fold

#: What passes between the parts of a call, so that they run one after the other.
_TURN = jax.ShapeDtypeStruct((), np.uint8)


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
        raise ArgumentError(
            "A gather, a scatter or sparse rows have lengths that other ranks decide, and JAX's programs have fixed "
            "shapes. Call it outside of jit; all_reduce, reduce and broadcast may stand inside."
        )
    shapes = [jax.ShapeDtypeStruct(like.array.shape, _dtype(like, result_dtype)) for like in likes]

    def call(_: Any, targets: Sequence[Any], _begun: Any, *given: Any) -> None:
        made = function(*map(np.asarray, given))
        for target, array in zip(targets, (0, *made), strict=True):
            np.asarray(target)[...] = array

    begun = io_callback(_begin, _TURN, ordered=True)
    ended, *made = buffer_callback(call, [_TURN, *shapes], has_side_effect=True)(begun, *arrays)
    io_callback(_end, None, ended, ordered=True)
    return list(made)


def _begin() -> Any:
    return np.uint8(0)


def _end(ended: Any) -> None:
    """Let the next call begin: this one waits for the end of its own."""


def _dtype(like: Like, result_dtype: Callable[[Fold, str], str]) -> Any:
    own = like.array.dtype
    return own if like.fold is None else np.dtype(result_dtype(like.fold, own.name))
