"""Errors and warnings that only TensorFlow's users see."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from typing import Any, Self

import tensorflow as tf

import treefold.errors


class ReplicaMismatchError(treefold.errors.MismatchError, tf.errors.InvalidArgumentError):  # type: ignore[misc]
    """Replicas disagree: both treefold's ``MismatchError`` and the error that TensorFlow's own ops raise."""

    # What tf.errors.OpError sets in a constructor of three arguments; treefold's errors are made from their sentence.
    _node_def = None
    _op = None
    _error_code = tf.errors.INVALID_ARGUMENT

    __str__ = Exception.__str__
    __reduce__ = Exception.__reduce__

    @property
    def _message(self) -> str:
        return str(self)

    @property
    def _experimental_payloads(self) -> dict[str, Any]:
        return {}

    @classmethod
    def of(cls, error: treefold.errors.MismatchError) -> Self:
        """Return an error of both kinds with the sentence of a ``MismatchError``."""
        return cls(str(error)).with_traceback(error.__traceback__)

    @classmethod
    def gathered(cls, error: treefold.errors.MismatchError, shapes: Sequence[Any], axis: int) -> Self:
        """Add TensorFlow's words for shapes that cannot be concatenated, which programs look for."""
        return cls(f"{error}{_words_of_concat(shapes, axis)}").with_traceback(error.__traceback__)


@functools.cache
def warn_without_timeouts() -> None:
    """Warn, once in a process, that ``timeout_seconds`` has no effect."""
    warnings.warn(
        "timeout_seconds has no effect on treefold's reductions: they run within this process and wait for no other. "
        "Leave it out, unless the same options go to TensorFlow's collective ops.",
        RuntimeWarning,
        stacklevel=2,
    )


def _words_of_concat(shapes: Sequence[Any], axis: int) -> str:
    ranks = {shape.rank for shape in shapes}
    if len(ranks) != 1:
        return " (TensorFlow: Ranks of all input tensors should match)"
    along = axis % ranks.pop()
    for other in shapes[1:]:
        for index, (one, two) in enumerate(zip(shapes[0], other, strict=True)):
            if index != along and one != two:
                return f" (TensorFlow: Dimension {index} in both shapes must be equal)"
    return ""
