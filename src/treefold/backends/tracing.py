"""Calls inside graphs that a framework traces: the shapes of their results, and functions that are not traced."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any, NamedTuple, TypeVar

from treefold.fold import Fold

_Method = TypeVar("_Method", bound=Callable[..., Any])


class Like(NamedTuple):
    """The form of a later call's result.

    Args:
        array: An array of the same shape, and, without a fold, of the same dtype.
        fold: The result is a fold of such arrays and has its dtype; None: it has the array's.
        axis: The axis with another length; None if there is none.

    """

    array: Any
    fold: Fold | None = None
    axis: int | None = None


#: Functions that wait to be marked for PyTorch until it is imported.
_AS_WRITTEN: list[Callable[..., Any]] = []


def as_written(method: _Method) -> _Method:
    """Mark a function that TensorFlow's AutoGraph and PyTorch's compiler must call without tracing it."""
    method.autograph_info__ = {}  # type: ignore[attr-defined] # AutoGraph looks for this name
    _AS_WRITTEN.append(method)
    if sys.modules.get("torch") is not None:
        mark_for_torch()
    return method


def mark_for_torch() -> None:
    """Keep PyTorch's compiler from tracing the marked functions: it cannot trace the first call of a kind."""
    while _AS_WRITTEN:
        untraced(_AS_WRITTEN.pop())


def untraced(called: _Method) -> _Method:
    """Keep ``torch.compile`` from tracing a function, or a class's methods and properties, or anything they call."""
    # ``torch.compiler.disable`` would import the compiler, which takes seconds, in programs that do not compile.
    from torch._C._dynamo import eval_frame  # noqa: PLC0415 - PyTorch is imported by its users alone

    # Older releases of PyTorch do not have it, so there the compiler may trace these functions.
    mark = getattr(eval_frame, "set_code_exec_strategy", None)
    members = vars(called).values() if isinstance(called, type) else [called]
    for function in [getattr(member, "fget", member) for member in members]:
        if mark is not None and isinstance(function, FunctionType):
            skip = vars(eval_frame)["_FrameAction"].SKIP
            mark(function.__code__, vars(eval_frame)["_FrameExecStrategy"](skip, skip))
            vars(function)["_torchdynamo_disable"] = True  # its callers do not inline it either
    return called
