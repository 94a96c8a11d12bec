"""Tensors on other devices, which another backend has: those of ``"cpu:treefold,cuda:nccl"`` on GPUs, for instance.

PyTorch 2.13 lets a process group in Python stand for all devices of such a string, and makes none of the others.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import distributed

_HOST = "cpu"
_Group = TypeVar("_Group", bound=type)
#: Calls that PyTorch has renamed, and their names before.
_OLDER_NAMES = {
    "all_gather_single": "_allgather_base",
    "all_gather_single_coalesced": "allgather_into_tensor_coalesced",
    "reduce_scatter_single": "_reduce_scatter_base",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced",
    "all_to_all_single": "alltoall_base",
}
_TAKING_TENSORS = (
    *("allreduce", "allreduce_coalesced", "reduce", "reduce_scatter", "broadcast", "allgather", "allgather_coalesced"),
    *("gather", "scatter", "alltoall", "send", "recv", "recv_anysource", *_OLDER_NAMES),
)


class Elsewhere:
    """The other backends' groups of the same ranks: each is made when a tensor on its device first comes.

    All ranks make the same calls, so all make that group at the same time. It lives as long as PyTorch's default group.
    """

    def __init__(self, own: str) -> None:
        """Begin with none. ``own``: the name of the backend whose tensors are not elsewhere."""
        self._own = own
        self._groups: dict[str, Any] = {}
        self._making = threading.Lock()

    def group(self, asked: Any, device: str, seconds: float) -> Any:
        """Return the group that has a device of the group that is asked; None if none has."""
        with self._making:
            if device not in self._groups:
                pairs = (pair.split(":") for pair in distributed.get_backend_config(asked).split(","))
                backend = dict(pairs).get(device, self._own)
                self._groups[device] = None if backend == self._own else _make(asked, backend, seconds)
            return self._groups[device]


def _make(asked: Any, backend: str, seconds: float) -> Any:
    ranks, timeout = distributed.get_process_group_ranks(asked), timedelta(seconds=seconds)
    return distributed.new_group(ranks, timeout, backend, use_local_synchronization=True)


def or_elsewhere(group: _Group) -> _Group:
    """Let the calls of a class of process groups go to another group where the tensors are on its devices."""
    for name in _TAKING_TENSORS:
        method = getattr(group, name)
        for one in filter(None, (name, _OLDER_NAMES.get(name))):
            setattr(group, one, _or_elsewhere(method, one))
    return group


def _or_elsewhere(method: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return a method of a process group that another group's, of that name, stands in for where the tensors are."""

    @functools.wraps(method)
    def call(group: Any, *arguments: Any, **named: Any) -> Any:
        device = _device_of(arguments)
        other = None if device == _HOST else group.elsewhere(device)
        return method(group, *arguments, **named) if other is None else getattr(other, name)(*arguments, **named)

    return call


def _device_of(arguments: tuple[Any, ...] | list[Any]) -> str:
    """Return the device of the first tensor in lists, or in lists of lists."""
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            return str(argument.device.type)
        if isinstance(argument, list) and argument:
            return _device_of(argument)
    return _HOST
