"""Names of devices, in every spelling that users bring, made one.

Only names live here. Whether a device exists is a question for the backends.
"""

from __future__ import annotations

import functools
import re

from treefold.errors import DeviceError

_PART = re.compile(r"(?P<key>[A-Za-z_]\w*)(?::(?P<value>[^:]+))?(?::(?P<index>[^:]+))?")
_OTHER_TYPES = {"cuda": "gpu"}
_LONGEST = 256  # characters of a name; TensorFlow's long form has some fifty


def canonical_device(name: object) -> str:
    """Return the short name, such as ``"gpu:1"``, of a device in this process.

    Accepted: ``"gpu:1"``, ``"GPU:1"``, ``"/gpu:1"``, ``"cuda:1"``, ``"/device:GPU:1"`` and TensorFlow's long form
    ``"/job:worker/replica:0/task:0/device:GPU:1"``. A missing index means 0.

    Raises:
        DeviceError: it is no name, does not parse, or names a device of another task or replica job.

    >>> canonical_device("/job:localhost/replica:0/task:0/device:CPU:3")
    'cpu:3'
    """
    if not isinstance(name, str) or len(name) > _LONGEST:
        raise DeviceError.unparsable(name)
    return _canonical(name)


@functools.lru_cache(maxsize=1024)
def _canonical(name: str) -> str:
    device: str | None = None
    for part in name.strip().removeprefix("/").split("/"):
        found = _PART.fullmatch(part)
        if found is None:
            raise DeviceError.unparsable(name)
        key, value, index = found["key"].lower(), found["value"], found["index"]
        if key in {"job", "replica", "task"}:
            _check_is_here(name, key, value, index)
        elif device is not None:
            raise DeviceError.unparsable(name)
        elif key == "device":
            device = _short_name(name, value, index)
        elif index is None:
            device = _short_name(name, key, value)
        else:
            raise DeviceError.unparsable(name)
    if device is None:
        raise DeviceError.unparsable(name)
    return device


def device_type(device: str) -> str:
    """Return the kind of a canonical device name, such as ``"cpu"``."""
    return device.partition(":")[0]


def _check_is_here(name: str, key: str, value: str | None, index: str | None) -> None:
    if value is None or index is not None:
        raise DeviceError.unparsable(name)
    if key == "job":
        return
    if not value.isdecimal():
        raise DeviceError.unparsable(name)
    if int(value) != 0:
        raise DeviceError.in_another_process(name, key, int(value))


def _short_name(name: str, kind: str | None, index: str | None) -> str:
    if kind is None or not kind.isidentifier() or not (index is None or index.isdecimal()):
        raise DeviceError.unparsable(name)
    return f"{_OTHER_TYPES.get(kind.lower(), kind.lower())}:{int(index or 0)}"
