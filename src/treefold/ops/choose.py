"""Which ops a set of devices deserves, and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from treefold.backends import loaded_backends
from treefold.devices import device_type
from treefold.errors import DeviceError
from treefold.ops.all_reduce import HierarchicalCopyAllReduce
from treefold.ops.arguments import read_destinations
from treefold.ops.base import CrossDeviceOps
from treefold.ops.one_device import ReductionToOneDevice


class Choice(NamedTuple):
    """The ops to use, and the reason in words."""

    ops: CrossDeviceOps
    why: str


def choose_cross_device_ops(devices: Sequence[str]) -> Choice:
    """Return the best ops for these devices, and why.

    Raises:
        ArgumentError: no devices.
        DeviceError: one does not parse, or no loaded framework reports it.

    >>> choose_cross_device_ops(["cpu:0", "cpu:1"]).why
    'all devices share host memory, where every plan is one pass in replica order'
    """
    names = read_destinations(list(devices))
    backends = loaded_backends()
    for name in names:
        if not any(backend.has_device(name) for backend in backends):
            raise DeviceError.unreported(name, [backend.name for backend in backends])
    kinds = {device_type(name) for name in names}
    if kinds == {"cpu"}:
        why = "all devices share host memory, where every plan is one pass in replica order"
        return Choice(ReductionToOneDevice(), why)
    if len(kinds) > 1:
        why = f"{' and '.join(sorted(kinds))} are mixed; one device meets every contribution once"
        return Choice(ReductionToOneDevice(), why)
    count = len(set(names))
    if count <= 2:  # noqa: PLR2004
        return Choice(ReductionToOneDevice(), f"{count} of a kind: there is only one way between two devices")
    why = f"{count} of a kind whose links are not known: packs rotate over all of them, so that none carries everything"
    return Choice(HierarchicalCopyAllReduce(num_packs="auto"), why)
