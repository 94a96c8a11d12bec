"""Calls within what a framework traces: what its graph needs to know of them, and what is called as it stands."""

from __future__ import annotations

import importlib
import sys
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


#: What is marked for PyTorch, too, once that is imported.
_AS_WRITTEN: list[Callable[..., Any]] = []


def as_written(method: _Method) -> _Method:
    """Mark what TensorFlow's AutoGraph and PyTorch's compiler are to call as it stands."""
    method.autograph_info__ = {}  # type: ignore[attr-defined] # AutoGraph looks for this name
    _AS_WRITTEN.append(method)
    if sys.modules.get("torch") is not None:
        mark_for_torch()
    return method


def mark_for_torch() -> None:
    """Let PyTorch's compiler trace nothing of this: it would stumble over what the first call of a kind does."""
    untraced = importlib.import_module("treefold.backends.torch_untraced").untraced
    while _AS_WRITTEN:
        untraced(_AS_WRITTEN.pop())
