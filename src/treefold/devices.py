"""Names of devices: ``Device`` reads every spelling that users write, and gives the frameworks' own names.

This module knows names only. The backends know whether a device exists.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from typing import get_args

from treefold.errors import DeviceError
from treefold.errors.words import short
from treefold.reduce_op import ReduceOpName

_NAME = re.compile(
    r"(?:(?P<rank>\d+)/|/?(?:job:(?P<job>[^:/]+)/)?(?:replica:0/)?(?:task:(?P<task>\d+)/)?)"
    r"(?:device:)?(?P<type>(?!(?:job|replica|task|device)\b)[a-z_]\w*)(?::(?P<index>\d+))?",
    re.ASCII | re.IGNORECASE,
)
_OTHER_TYPES = {"cuda": "gpu"}
#: The devices of host memory, in words.
HOST_DEVICES = "cpu:0, cpu:1 and so on, which share the host's memory"
_USUAL_TYPES = ("cpu", "gpu", "cuda")
_LONGEST = 256  # characters of a name; TensorFlow's long form has some fifty


@dataclasses.dataclass(frozen=True, slots=True)
class Device:
    """A device by its name: its type, its index within its process, and the rank of that process.

    ``rank`` is None for this process.

    >>> str(Device("gpu", 1)), str(Device("gpu", 0, rank=2))
    ('gpu:1', '2/gpu:0')
    """

    type: str
    index: int
    rank: int | None = None

    @classmethod
    def parse(cls, name: object) -> Device:
        """Return the device that a name means.

        The short forms are ``"gpu:1"``, ``"GPU:1"``, ``"/gpu:1"``, ``"cuda:1"`` and ``"/device:GPU:1"``; a missing
        index means 0. A rank comes first, as in ``"2/gpu:1"``. In TensorFlow's long form, the task is the rank. Without
        a task, or with task 0 of TensorFlow's local job, the device belongs to this process.

        Raises:
            DeviceError: It is not a name, or does not parse.

        >>> Device.parse("/job:worker/task:2/device:GPU:0")
        Device(type='gpu', index=0, rank=2)
        """
        found = _NAME.fullmatch(name.strip()) if isinstance(name, str) and len(name) <= _LONGEST else None
        if found is None:
            raise DeviceError.unparsable(name)
        kind, task = found["type"].lower(), found["task"] or found["rank"]
        is_here = task is None or ((found["job"] or "").lower() == "localhost" and int(task) == 0)
        return cls(_OTHER_TYPES.get(kind, kind), int(found["index"] or 0), None if is_here else int(task))

    def __str__(self) -> str:
        """Return the canonical name."""
        return f"{'' if self.rank is None else f'{self.rank}/'}{self.type}:{self.index}"


def canonical_device(name: object) -> str:
    """Return the canonical name, such as ``"gpu:1"``, of a device of this process.

    Raises:
        DeviceError: It is not a name, does not parse, is a reduce op's, or has a rank, which needs a group of
            processes.

    >>> canonical_device("/job:localhost/replica:0/task:0/device:CPU:3")
    'cpu:3'
    """
    return _canonical(name) if isinstance(name, str) else str(Device.parse(name))


@functools.lru_cache(maxsize=1024)
def _canonical(name: str) -> str:
    if name.lower() in get_args(ReduceOpName):
        raise DeviceError(
            f"{name!r} names a reduce op, and a device is meant. Write the op as op={name!r}, or first where an ops "
            f'object is called, and here a device such as "cpu:0".'
        )
    device = Device.parse(name)
    if device.rank is not None:
        raise DeviceError(
            f"{short(name)} is a device of rank {device.rank}, and ranks need a group of processes, which this call "
            "does not "
            "have. Names without a rank mean devices of this process: write "
            f'"{dataclasses.replace(device, rank=None)!s}" for its own.'
        )
    return str(device)


@functools.lru_cache(maxsize=1024)
def device_type(device: str) -> str:
    """Return the type in a device's name, such as ``"cpu"``; with a rank ``"2/cpu"``: not this process's memory."""
    return str(Device.parse(device)).partition(":")[0]


@functools.lru_cache(maxsize=4096)
def rank_of(device: str) -> int | None:
    """Return the rank in the name of a device; None for a device of this process.

    >>> rank_of("2/cpu:1"), rank_of("cpu:1")
    (2, None)
    """
    return Device.parse(device).rank


def similar_device(device: str) -> str | None:
    """Return a device of a usual type that a misspelt name may mean; None if none is close.

    >>> similar_device("cp:0"), similar_device("cuda1"), similar_device("gpu:7"), similar_device("xpu:0")
    ('cpu:0', 'cuda:1', None, None)
    """
    import difflib  # noqa: PLC0415 - for errors only

    kind, _, index = device.partition(":")
    word = kind.rstrip("0123456789")
    near = difflib.get_close_matches(word, _USUAL_TYPES, 1, 0.7)  # at 0.6, xpu would be close to cpu
    return f"{near[0]}:{kind[len(word) :] or index or 0}" if near and near[0] != kind else None


@functools.lru_cache(maxsize=1024)
def torch_device(device: str) -> str:
    """Return PyTorch's name of a device of this process; every ``cpu:k`` is its one CPU.

    >>> torch_device("gpu:1"), torch_device("cpu:1")
    ('cuda:1', 'cpu')
    """
    found = Device.parse(device)
    return {"cpu": "cpu", "gpu": f"cuda:{found.index}"}.get(found.type, device)


@functools.lru_cache(maxsize=1024)
def tensorflow_device(device: str) -> str:
    """Return TensorFlow's name of a device of this process, whatever its job and task are in a cluster.

    >>> tensorflow_device("gpu:1")
    '/device:GPU:1'
    """
    found = Device.parse(device)
    return f"/device:{found.type.upper()}:{found.index}"
