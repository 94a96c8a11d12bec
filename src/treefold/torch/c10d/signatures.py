"""Arguments of a process group's methods that callers may leave out, as PyTorch's own process groups have it.

Those are overloaded in C++. After the tensors stand options, or some of their fields. One tensor may stand where a list
of tensors is meant. ``torch.distributed``'s functions always bring lists and options, and
DDP on uneven inputs, for instance, does not.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

import torch
from torch import distributed
from torch._C import _distributed_c10d as c10d

_Group = TypeVar("_Group", bound=type)
_SUM = distributed.ReduceOp.SUM
_Fields = dict[str, Any]


def _none() -> _Fields:
    return {}


def _timeout(timeout: timedelta | None = None) -> _Fields:
    return {"timeout": timeout}


def _op(op: Any = _SUM, timeout: timedelta | None = None) -> _Fields:
    return {"reduceOp": op, "timeout": timeout}


def _root(root: int = 0, timeout: timedelta | None = None) -> _Fields:
    return {"rootRank": root, "timeout": timeout}


def _root_and_op(root: int = 0, op: Any = _SUM, timeout: timedelta | None = None) -> _Fields:
    return {"rootRank": root, "reduceOp": op, "timeout": timeout}


class _Form(NamedTuple):
    """The arguments of a method: ``num_before`` tensors and sizes, then options of a class, or ``parts`` of them.

    ``takes_lists``: whether one tensor may stand where a list of them is meant.
    """

    num_before: int
    options: Any
    parts: Callable[..., _Fields] = _none
    takes_lists: bool = False


_FORMS = {
    "allreduce": _Form(1, c10d.AllreduceOptions, _op, takes_lists=True),
    "allreduce_coalesced": _Form(1, c10d.AllreduceCoalescedOptions),
    "reduce": _Form(1, c10d.ReduceOptions, _root_and_op, takes_lists=True),
    "reduce_scatter": _Form(2, c10d.ReduceScatterOptions, _op, takes_lists=True),
    "reduce_scatter_single": _Form(2, c10d.ReduceScatterOptions),
    "reduce_scatter_single_coalesced": _Form(2, c10d.ReduceScatterOptions),
    "broadcast": _Form(1, c10d.BroadcastOptions, _root, takes_lists=True),
    "allgather": _Form(2, c10d.AllgatherOptions, _timeout, takes_lists=True),
    "allgather_coalesced": _Form(2, c10d.AllgatherOptions),
    "all_gather_single": _Form(2, c10d.AllgatherOptions),
    "all_gather_single_coalesced": _Form(2, c10d.AllgatherOptions),
    "gather": _Form(2, c10d.GatherOptions, _root, takes_lists=True),
    "scatter": _Form(2, c10d.ScatterOptions, _root, takes_lists=True),
    "alltoall": _Form(2, c10d.AllToAllOptions, _timeout),
    "all_to_all_single": _Form(4, c10d.AllToAllOptions, _timeout),
    "barrier": _Form(0, c10d.BarrierOptions, _timeout),
}


def with_defaults(group: _Group) -> _Group:
    """Let the methods of a class of process groups take what PyTorch's own take; they get lists and options."""
    for name, form in _FORMS.items():
        setattr(group, name, _with_defaults(getattr(group, name), form))
    return group


def _with_defaults(method: Callable[..., Any], form: _Form) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(group: Any, *arguments: Any, **named: Any) -> Any:
        brought, rest = arguments[: form.num_before], arguments[form.num_before :]
        if form.takes_lists and any(isinstance(one, torch.Tensor) for one in brought):
            brought = tuple([one] for one in brought)
        return method(group, *brought, _options(form, *rest, **named))

    return call


def _options(form: _Form, *given: Any, **named: Any) -> Any:
    """Return the options of a call: those that it brings, or new ones of what stands in their place."""
    brought = [*given, *named.values()]
    if len(brought) == 1 and hasattr(brought[0], "timeout"):  # as every class of options has
        return brought[0]
    options = form.options()
    for name, value in form.parts(*given, **named).items():
        if value is not None:
            setattr(options, name, value)
    return options
