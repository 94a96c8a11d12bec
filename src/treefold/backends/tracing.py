"""Calls within what a framework traces: what its graph needs to know of them, and what is called as it stands."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FunctionType
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
    while _AS_WRITTEN:
        untraced(_AS_WRITTEN.pop())


def untraced(called: _Method) -> _Method:
    """Let ``torch.compile`` trace neither a function, or the methods and properties of a class, nor what they call."""
    # ``torch.compiler.disable`` would import the compiler, which takes seconds, in programs that do not compile.
    from torch._C._dynamo import eval_frame  # noqa: PLC0415 - PyTorch is imported by its users alone

    # Older releases of PyTorch do not have it; there the compiler traces what it likes.
    mark = getattr(eval_frame, "set_code_exec_strategy", None)
    members = vars(called).values() if isinstance(called, type) else [called]
    for function in [getattr(member, "fget", member) for member in members]:
        if mark is not None and isinstance(function, FunctionType):
            skip = vars(eval_frame)["_FrameAction"].SKIP
            mark(function.__code__, vars(eval_frame)["_FrameExecStrategy"](skip, skip))
            vars(function)["_torchdynamo_disable"] = True  # nor is it inlined in what calls it
    return called
