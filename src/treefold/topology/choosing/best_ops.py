"""The best ops for a set of devices, and the reason."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from treefold.backends import backend_of, loaded_backends
from treefold.calls.arguments import as_asked, read_destinations
from treefold.devices import device_type, similar_device
from treefold.errors import ArgumentError, DeviceError
from treefold.ops.base import CrossDeviceOps
from treefold.ops.cross_device_ops import HierarchicalCopyAllReduce, ReductionToOneDevice
from treefold.topology.for_ops import read_topology
from treefold.values import DistributedValues

if TYPE_CHECKING:
    from treefold.topology.graph import Topology

_HINT = "treefold.verify_links() or topology= would let predicted times decide"


# Two classes, because a NamedTuple takes no attributes beside its fields, and its subclass does.
class _OpsAndWhy(NamedTuple):
    ops: CrossDeviceOps
    why: str


class Choice(_OpsAndWhy):
    """The ops to use, and the reason in words: ``ops, why = choice``.

    ``predicted``: seconds of every candidate, by its constructor call; empty where no times were compared.
    """

    predicted: Mapping[str, float] = MappingProxyType({})

    def __getstate__(self) -> dict[str, float]:
        return dict(self.predicted)  # what cannot be changed cannot be pickled

    def __setstate__(self, predicted: dict[str, float]) -> None:
        self.predicted = MappingProxyType(predicted)


def choose_cross_device_ops(devices: Sequence[str], *, topology: object = None, nbytes: int = 64 << 20) -> Choice:
    """Return the best ops for one replica on each of these devices, and why.

    Where links are known, the fastest: ``ReductionToOneDevice``, ``HierarchicalCopyAllReduce`` in one pack and in one
    per device, ``NcclAllReduce`` where NCCL can be used, and ``HierarchicalCopyAllReduce`` along the machine's trees
    are priced by ``treefold.simulate`` on the plans that they make, NCCL by the rings that it would pack; of those
    within 1 % the first. Known are the links of
    ``topology``, a ``Topology`` or what ``load_topology`` and ``known_topology`` take, or else those that
    ``treefold.verify_links`` has measured in this process. Otherwise the number of devices decides. A device that is
    named several times has several replicas. ``nbytes``: what each replica brings to one call, such as all gradients.

    With a ``topology`` the devices need not be here: planning for a machine that one does not have is meant.

    Raises:
        ArgumentError: no devices, ``nbytes`` that is no whole number above 0, or a ``topology`` that is none.
        DeviceError: one does not parse, or no loaded framework reports it and there is no ``topology``.
        TopologyError: ``topology`` does not have these devices, or does not join them.

    >>> choose_cross_device_ops(["cpu:0", "cpu:1"]).why
    'all devices share host memory, where every plan is one pass in replica order'
    >>> ops, why = choose_cross_device_ops(["gpu:0", "gpu:1", "gpu:2"], topology="ring:3", nbytes=4096)
    >>> ops
    HierarchicalCopyAllReduce(num_packs='auto', topology='ring:3')
    """
    names = _read_names(devices)
    _check_bytes(nbytes)
    machine = None if topology is None else read_topology(topology)
    here = None if machine is None else machine.restricted(dict.fromkeys(names))
    if machine is None:
        _check_reported(names, devices)
    if all(device_type(name) == "cpu" for name in names):
        why = "all devices share host memory, where every plan is one pass in replica order"
        return Choice(ReductionToOneDevice(), why)
    if len(set(names)) == 1:
        return Choice(ReductionToOneDevice(), f"every replica is on {names[0]}, where they meet without a copy")
    if machine is not None and here is not None:
        return _fastest(names, nbytes, machine, here, f"on {machine.name or 'this topology'}")
    from treefold.topology.choosing.measured import measured_machine  # noqa: PLC0415 - callers that only reduce do not pay for it

    measured = measured_machine(tuple(dict.fromkeys(names)))
    if measured is not None:
        return _fastest(names, nbytes, measured, measured, "on links as measured")
    return _by_count(names)


def _read_names(devices: object) -> tuple[str, ...]:
    if isinstance(devices, Iterable) and not isinstance(devices, str | DistributedValues) and not backend_of(devices):
        devices = list(devices)
    return read_destinations(devices)


def _fastest(names: Sequence[str], nbytes: int, machine: Topology, here: Topology, where: str) -> Choice:
    from treefold.topology.choosing.prices import price_ops  # noqa: PLC0415 - loads planners and the simulator

    prices = price_ops(names, nbytes, machine, here)
    choice = Choice(prices.best.ops, prices.describe(names, nbytes, where))
    choice.predicted = MappingProxyType({repr(one.ops): one.seconds for one in prices.candidates})
    return choice


def _by_count(names: Sequence[str]) -> Choice:
    """Choose by the number and the kinds of devices, where nothing is known of their links."""
    kinds = {device_type(name) for name in names}
    if len(kinds) > 1:
        why = f"{' and '.join(sorted(kinds))} are mixed; one device meets every contribution once; {_HINT}"
        return Choice(ReductionToOneDevice(), why)
    count = len(set(names))
    if count == 2:  # noqa: PLR2004
        why = f"{count} of a kind: there is only one way between two devices; {_HINT}"
        return Choice(ReductionToOneDevice(), why)
    why = f"{count} of a kind whose links are not known: packs rotate over all of them, so that none carries everything"
    return Choice(HierarchicalCopyAllReduce(num_packs="auto"), f"{why}; {_HINT}")


def _check_reported(names: Sequence[str], devices: object) -> None:
    backends = loaded_backends()
    for name in names:
        if not any(backend.has_device(name) for backend in backends):
            loaded, why = [backend.name for backend in backends], [backend.why_missing(name) for backend in backends]
            raise DeviceError.unreported(as_asked(name, devices), loaded, why, similar_device(name))


def _check_bytes(nbytes: object) -> None:
    if isinstance(nbytes, bool) or not isinstance(nbytes, int) or nbytes < 1:
        raise ArgumentError.option(nbytes=nbytes)
