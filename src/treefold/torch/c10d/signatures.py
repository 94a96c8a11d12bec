"""The signatures of a process group's methods, as PyTorch's own process groups have them, overloaded in C++.

After the tensors come options, or some of their fields. One tensor may replace a list of tensors, and some methods have
an older name. ``torch.distributed``'s functions always pass lists and options; DDP on uneven inputs does not.

Calls on tensors of another device go to the group of the backend for it, such as GPUs in ``"cpu:treefold,cuda:nccl"``.
In PyTorch 2.13, a process group in Python takes the place of all backends in such a string, so the others are made
here.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

import torch
from torch import distributed
from torch._C import _distributed_c10d as c10d

from treefold.errors import ProcessGroupError
from treefold.errors.words import short

_Group = TypeVar("_Group", bound=type)
#: Fields of options that have another name as arguments.
_FIELDS = {"op": "reduceOp", "root": "rootRank"}


class _Signature(NamedTuple):
    """The arguments of a method: tensors and sizes, then options or some of their fields.

    Args:
        num_before: The number of tensors and sizes.
        options: The class of the options; None if the method has none.
        fields: The fields of the options that may be passed themselves.
        takes_lists: Whether one tensor may replace a list of tensors.
        older: The method's name in earlier releases.

    """

    num_before: int
    options: Any = None
    fields: tuple[str, ...] = ()
    takes_lists: bool = False
    older: str = ""


_OP, _ROOT, _TIMEOUT = ("op", "timeout"), ("root", "timeout"), ("timeout",)
_SIGNATURES = {
    "allreduce": _Signature(1, c10d.AllreduceOptions, _OP, takes_lists=True),
    "allreduce_coalesced": _Signature(1, c10d.AllreduceCoalescedOptions),
    "reduce": _Signature(1, c10d.ReduceOptions, ("root", *_OP), takes_lists=True),
    "reduce_scatter": _Signature(2, c10d.ReduceScatterOptions, _OP, takes_lists=True),
    "reduce_scatter_single": _Signature(2, c10d.ReduceScatterOptions, older="_reduce_scatter_base"),
    "reduce_scatter_single_coalesced": _Signature(
        2, c10d.ReduceScatterOptions, older="reduce_scatter_tensor_coalesced"
    ),
    "broadcast": _Signature(1, c10d.BroadcastOptions, _ROOT, takes_lists=True),
    "allgather": _Signature(2, c10d.AllgatherOptions, _TIMEOUT, takes_lists=True),
    "allgather_coalesced": _Signature(2, c10d.AllgatherOptions),
    "all_gather_single": _Signature(2, c10d.AllgatherOptions, older="_allgather_base"),
    "all_gather_single_coalesced": _Signature(2, c10d.AllgatherOptions, older="allgather_into_tensor_coalesced"),
    "gather": _Signature(2, c10d.GatherOptions, _ROOT, takes_lists=True),
    "scatter": _Signature(2, c10d.ScatterOptions, _ROOT, takes_lists=True),
    "alltoall": _Signature(2, c10d.AllToAllOptions, _TIMEOUT),
    "all_to_all_single": _Signature(4, c10d.AllToAllOptions, _TIMEOUT, older="alltoall_base"),
    "barrier": _Signature(0, c10d.BarrierOptions, _TIMEOUT),
    "send": _Signature(3),
    "recv": _Signature(3),
    "recv_anysource": _Signature(2),
}


def as_pytorchs(group: _Group) -> _Group:
    """Give a class's methods the signatures of PyTorch's process groups; the methods get lists and options."""
    for name, signature in _SIGNATURES.items():
        method = getattr(group, name)
        for one in filter(None, (name, signature.older)):
            setattr(group, one, _as_pytorchs(method, one, signature))
    return group


def _as_pytorchs(method: Callable[..., Any], name: str, signature: _Signature) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(group: Any, *arguments: Any, **named: Any) -> Any:
        group.check_process()
        other = group.elsewhere(device_of(arguments))
        if other is not None:
            return getattr(other, name)(*arguments, **named)
        if signature.options is None:
            return method(group, *arguments, **named)
        brought, rest = arguments[: signature.num_before], arguments[signature.num_before :]
        if signature.takes_lists and any(isinstance(one, torch.Tensor) for one in brought):
            brought = tuple([one] for one in brought)
        return method(group, *brought, _options(name, signature, *rest, **named))

    return call


def _options(call: str, signature: _Signature, *given: Any, **named: Any) -> Any:
    """Return the options of a call: those that were passed, or new ones with the fields that were.

    Raises:
        ProcessGroupError: Something else was passed.

    """
    brought = [*given, *named.values()]
    if len(brought) == 1 and hasattr(brought[0], "timeout"):  # as every class of options has
        return brought[0]
    if len(given) > len(signature.fields) or not named.keys() <= {*signature.fields}:
        raise ProcessGroupError.arguments(call, [*map(short, given), *named], ["opts", *signature.fields])
    options = signature.options()
    for name, value in (*zip(signature.fields, given, strict=False), *named.items()):
        if value is not None:
            setattr(options, _FIELDS.get(name, name), value)
    return options


_HOST = "cpu"


class Elsewhere:
    """The groups of other backends with the same ranks, each made when a tensor on its device first comes.

    All ranks make the same calls, so all make that group at the same time. Such a group lives as long as PyTorch's
    default group.
    """

    def __init__(self, own: str) -> None:
        """Begin without groups. ``own``: the name of this backend, which has no group here."""
        self._own = own
        self._groups: dict[str, Any] = {_HOST: None}
        self._making = threading.Lock()

    def group(self, asked: Any, device: str, seconds: float) -> Any:
        """Return the group for a device in the backend string of the group ``asked``; None if none has it."""
        with self._making:
            if device not in self._groups:
                pairs = (pair.split(":") for pair in distributed.get_backend_config(asked).split(","))
                backend = dict(pairs).get(device, self._own)
                if backend == self._own:
                    self._groups[device] = None
                else:
                    ranks, wait = distributed.get_process_group_ranks(asked), timedelta(seconds=seconds)
                    self._groups[device] = distributed.new_group(ranks, wait, backend, use_local_synchronization=True)
            return self._groups[device]


def device_of(arguments: tuple[Any, ...] | list[Any]) -> str:
    """Return the type of the device of the first tensor in lists, or in lists of lists."""
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            return str(argument.device.type)
        if isinstance(argument, list) and argument:
            return device_of(argument)
    return _HOST
