"""Tensors on other devices, which another backend has: those of ``"cpu:treefold,cuda:nccl"`` on GPUs, for instance.

PyTorch 2.13 lets a process group in Python stand for all devices of such a string, and makes none of the others.
"""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import torch
from torch import distributed

_HOST = "cpu"


class Elsewhere:
    """The other backends' groups of the same ranks: each is made when a tensor on its device first comes.

    All ranks make the same calls, so all make that group at the same time. It lives as long as PyTorch's default group.
    """

    def __init__(self, own: str) -> None:
        """Begin with none. ``own``: the name of the backend whose tensors are not elsewhere."""
        self._own = own
        self._groups: dict[str, Any] = {_HOST: None}
        self._making = threading.Lock()

    def group(self, asked: Any, device: str, seconds: float) -> Any:
        """Return the group that has a device of the group that is asked; None if none has."""
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
    """Return the device of the first tensor in lists, or in lists of lists."""
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            return str(argument.device.type)
        if isinstance(argument, list) and argument:
            return device_of(argument)
    return _HOST
