"""What a graph that is being traced needs to know of a call that is made when it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from treefold.fold import Fold

_Method = TypeVar("_Method", bound=Callable[..., Any])


class Like(NamedTuple):
    """What a later call will return: an array as this one, or the result of a fold of such.

    ``axis``: along which its length will be another; None if there is none.
    """

    array: Any
    fold: Fold | None = None
    axis: int | None = None


def as_written(method: _Method) -> _Method:
    """Mark a method that TensorFlow's AutoGraph is to call as it stands, as it does with what it has made itself."""
    method.autograph_info__ = {}  # type: ignore[attr-defined] # AutoGraph looks for this name
    return method
