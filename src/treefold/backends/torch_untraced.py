"""Functions and methods that run as they are within a compiled function."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar

# ``torch.compiler.disable`` would import the compiler, which takes seconds, in programs that do not compile.
from torch._C._dynamo import eval_frame

_Called = TypeVar("_Called", bound=Callable[..., Any])
# Older releases of PyTorch do not have it; there the compiler traces what it likes.
_mark: Any = getattr(eval_frame, "set_code_exec_strategy", None)


def untraced(called: _Called) -> _Called:
    """Let ``torch.compile`` trace neither a function, or the methods and properties of a class, nor what they call."""
    members = vars(called).values() if isinstance(called, type) else [called]
    for function in [getattr(member, "fget", member) for member in members]:
        if _mark is not None and isinstance(function, FunctionType):
            skip = vars(eval_frame)["_FrameAction"].SKIP
            _mark(function.__code__, vars(eval_frame)["_FrameExecStrategy"](skip, skip))
            vars(function)["_torchdynamo_disable"] = True  # nor is it inlined in what calls it
    return called
