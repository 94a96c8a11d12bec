"""Messages between two ranks: PyTorch's gloo, in a process group that each rank makes alone."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from torch.distributed import PrefixStore, ProcessGroupGloo, Store

from treefold.engines.stores import interfaces

_LOOPBACK = "127.0.0.1"


def message_group(store: Store, name: str, rank: int, size: int, timeout: timedelta, *, is_one_host: bool) -> Any:
    """Return a gloo process group for sends and receives alone, without waiting for the other ranks.

    Two ranks connect when they first have a message. ``is_one_host``: whether all ranks share a host; then
    this rank listens on the loopback interface only. ``name``: what keys in the store begin with.
    """
    options = ProcessGroupGloo._Options()  # noqa: SLF001 - there is no public way to devices
    options._devices = _devices(is_one_host)  # noqa: SLF001 - as above
    options._threads = 1  # noqa: SLF001 - they run collectives, of which there are none here
    options._timeout = timeout  # noqa: SLF001 - as above
    return ProcessGroupGloo(PrefixStore(f"{name}/messages", store), rank, size, options)


def _devices(is_one_host: bool) -> list[Any]:  # noqa: FBT001 - the one argument
    if is_one_host:
        return [ProcessGroupGloo.create_device(hostname=_LOOPBACK, lazy_init=True)]
    names = [ProcessGroupGloo.create_device(interface=name, lazy_init=True) for name in interfaces()]
    return names or [ProcessGroupGloo.create_default_device(lazy_init=True)]
