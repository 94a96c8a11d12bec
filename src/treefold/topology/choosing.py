"""Chooses the best ops for a set of devices by predicted times on given or measured links, and says why."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from treefold.backends import backend_of, loaded_backends
from treefold.calls.arguments import as_asked, read_destinations
from treefold.calls.entry import Entry, LeafForm, Part
from treefold.devices import device_type, similar_device
from treefold.dtypes import itemsize
from treefold.errors import ArgumentError, DeviceError, MissingExtraError, TreefoldError
from treefold.errors.words import bytes_in_words, counted, seconds_in_words
from treefold.execution import Operand, links
from treefold.execution.gpus import nccl_refusal
from treefold.ops.base import CrossDeviceOps
from treefold.ops.cross_device_ops import HierarchicalCopyAllReduce, NcclAllReduce, ReductionToOneDevice
from treefold.plan.ir import Goal
from treefold.topology.cost import MovementTimes, from_copies, refine
from treefold.topology.cost.routes import is_as_good
from treefold.topology.discover import discover_topology
from treefold.topology.for_ops import read_topology
from treefold.topology.graph import Topology
from treefold.topology.planning.compare import MOST_SIMULATED
from treefold.topology.planning.ring import pack_rings
from treefold.values import DistributedValues, flatten

_HOST = "cpu:0"
_SLOWER = frozenset({"pcie", "sys"})  # idle in copies between GPUs that something faster joins
_DTYPE = "float32"
_HINT = "treefold.verify_links() or topology= would let predicted times decide"


# Two classes, because a NamedTuple takes no attributes beside its fields, and its subclass does.
class _OpsAndWhy(NamedTuple):
    ops: CrossDeviceOps
    why: str


class Choice(_OpsAndWhy):
    """The ops to use, and the reason in words: ``ops, why = choice``.

    Attributes:
        predicted: seconds of every candidate, by its constructor call; empty where no times were compared.

    """

    predicted: Mapping[str, float] = MappingProxyType({})

    def __getstate__(self) -> dict[str, float]:
        return dict(self.predicted)  # a read-only mapping cannot be pickled

    def __setstate__(self, predicted: dict[str, float]) -> None:
        self.predicted = MappingProxyType(predicted)


def choose_cross_device_ops(devices: Sequence[str], *, topology: object = None, nbytes: int = 64 << 20) -> Choice:
    """Return the best ops for one replica on each of these devices, and why.

    If the links are known, candidates are compared by the times that ``treefold.simulate`` predicts for their plans.
    Candidates are ``ReductionToOneDevice`` and ``HierarchicalCopyAllReduce``, the latter in one pack, in one pack per
    device, and along the machine's trees. Where NCCL can be used, ``NcclAllReduce`` is compared, too, priced as rings.
    The fastest is chosen; of those within 1 %, the simplest. If no links are known, the number and kinds of devices
    decide.

    Args:
        devices: names of the devices, such as ``"gpu:0"``. A device that is named several times has several replicas.
        topology: the machine: a ``Topology``, or what ``load_topology`` and ``known_topology`` take. Its devices need
            not exist on this host. By default, links are known if ``treefold.verify_links`` measured them in this
            process.
        nbytes: bytes that each replica contributes to one call, such as all gradients together; 64 MiB by default.

    Returns:
        A named tuple ``(ops, why)``, with a mapping ``predicted`` from every candidate to its seconds.

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
    measured = measured_machine(tuple(dict.fromkeys(names)))
    if measured is not None:
        return _fastest(names, nbytes, measured, measured, "on links as measured")
    return _by_count(names)


def _read_names(devices: object) -> tuple[str, ...]:
    if isinstance(devices, Iterable) and not isinstance(devices, str | DistributedValues) and not backend_of(devices):
        devices = list(devices)
    return read_destinations(devices)


def _fastest(names: Sequence[str], nbytes: int, machine: Topology, here: Topology, where: str) -> Choice:
    prices = price_ops(names, nbytes, machine, here)
    choice = Choice(prices.best.ops, prices.describe(names, nbytes, where))
    choice.predicted = MappingProxyType({repr(one.ops): one.seconds for one in prices.candidates})
    return choice


def _by_count(names: Sequence[str]) -> Choice:
    """Choose by the number and the kinds of devices, because nothing is known of their links."""
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
            similar = similar_device(name)
            hints = [f"{why} " for backend in backends if (why := backend.why_missing(name))]
            hints += [f"Did you mean {similar}? "] * bool(similar)
            raise DeviceError(
                f"No loaded framework reports a device {as_asked(name, devices)}; loaded: "
                f"{', '.join(backend.name for backend in backends)}. {''.join(hints)}"
                f"Import the framework whose device it is, or name one that exists."
            )


def _check_bytes(nbytes: object) -> None:
    if isinstance(nbytes, bool) or not isinstance(nbytes, int) or nbytes < 1:
        raise ArgumentError.option(nbytes=nbytes)


def measured_machine(devices: Sequence[str]) -> Topology | None:
    """Return a machine of these distinct devices, its links as wide as measured copies; None if a pair was not proved.

    If NVML numbers the GPUs as CUDA does, the machine is the one that the system reports, with measured widths.
    Otherwise the model assumes that copies share nothing but each device's own port
    (``treefold.topology.cost.from_copies``).
    """
    copies = _copies(devices)
    if copies is None:
        return None
    found = _discovered(devices)
    return from_copies(devices, copies) if found is None else refine(found, copies)


def _copies(devices: Sequence[str]) -> Mapping[tuple[str, str], tuple[float, float]] | None:
    """Return (bytes per second, latency) of every ordered pair, through the host where the direct copy failed."""
    proved = {(link.source, link.target): link for link in links.known() if link.is_proved}
    tried = {(link.source, link.target) for link in links.known()}
    found = {}
    for pair in [(source, target) for source in devices for target in devices if source != target]:
        hops = [proved.get(hop) for hop in ([pair] if pair in proved else [(pair[0], _HOST), (_HOST, pair[1])])]
        if pair not in tried or any(hop is None for hop in hops):
            return None
        there = [hop for hop in hops if hop is not None]
        found[pair] = min(hop.bytes_per_s for hop in there), sum(hop.alpha_s for hop in there)
    return found


def _discovered(devices: Sequence[str]) -> Topology | None:
    """Return these GPUs as the system reports them; None if it does not, or may number them in another order."""
    in_order = os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" and "CUDA_VISIBLE_DEVICES" not in os.environ
    if not in_order or any(device_type(device) != "gpu" for device in devices):
        return None
    try:
        found = discover_topology().restricted(devices)
    except (TreefoldError, OSError):
        return None
    with contextlib.suppress(TreefoldError):  # not joined without them
        links_left = tuple(link for link in found.links if link.kind not in _SLOWER)
        return dataclasses.replace(found, links=links_left)
    return found


@dataclass(frozen=True, slots=True)
class Candidate:
    """Ops, their description, and their predicted time."""

    ops: CrossDeviceOps
    words: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Prices:
    """Candidates, the simplest first, and why others were not compared."""

    candidates: tuple[Candidate, ...]
    left_out: tuple[str, ...]

    @property
    def best(self) -> Candidate:
        """The fastest candidate; of those as good, the first."""
        least = min(one.seconds for one in self.candidates)
        return next(one for one in self.candidates if is_as_good(one.seconds, least))

    def describe(self, names: Sequence[str], nbytes: int, where: str) -> str:
        """Return all that was compared in a sentence, the choice first and then by time."""
        best = self.best
        rest = sorted((one for one in self.candidates if one is not best), key=lambda one: one.seconds)
        times = [f"{one.words} {seconds_in_words(one.seconds)}" for one in (best, *rest)]
        if rest and rest[0].seconds < best.seconds:
            times[0] += " (the simplest within 1 %)"
        who = " and ".join(
            f"{count} {kind.upper()}{'s' if count > 1 else ''}"
            for kind, count in sorted(Counter(device_type(name) for name in dict.fromkeys(names)).items())
        )
        return "; ".join(
            [f"{who} {where}, {bytes_in_words(nbytes)} each: {', '.join(times)}, predicted", *self.left_out]
        )


def price_ops(names: Sequence[str], nbytes: int, machine: Topology, here: Topology) -> Prices:
    """Return the predicted time of every candidate for an all-reduce of ``nbytes`` bytes of float32 on these devices.

    Trees are planned for ``machine``. All candidates are priced on ``here``, its part that has these devices.
    """
    entry = _one_value(tuple(names), nbytes)
    packs = f"HierarchicalCopyAllReduce in {counted(len(here.devices), 'pack')}"
    left_out = []
    found = [
        _priced(ReductionToOneDevice(), "ReductionToOneDevice", entry, here, nbytes),
        _priced(HierarchicalCopyAllReduce(1), "HierarchicalCopyAllReduce in one pack", entry, here, nbytes),
        _priced(HierarchicalCopyAllReduce("auto"), packs, entry, here, nbytes),
    ]
    refusal = nccl_refusal(names)
    if not refusal:
        # NCCL decides for itself how values travel; large ones go round rings. Where trees are no faster than
        # these, the library is the simpler choice.
        found.append(Candidate(NcclAllReduce(), "NcclAllReduce as rings", pack_rings(here).predict_s(nbytes)))
    trees = HierarchicalCopyAllReduce("auto", topology=machine)
    try:
        found.append(_priced(trees, "HierarchicalCopyAllReduce along the machine's trees", entry, here, nbytes))
    except MissingExtraError:
        left_out.append('the machine\'s trees are not compared: they need SciPy (pip install "treefold[planner]")')
    if refusal:
        left_out.append(f"NcclAllReduce is not compared: {refusal}")
    return Prices(tuple(found), tuple(left_out))


def _one_value(names: tuple[str, ...], nbytes: int) -> Entry:
    """Return one float32 array per device, as validation would leave it, without checking that the devices exist."""
    shape = (max(1, nbytes // itemsize(_DTYPE)),)
    no_arrays = Operand(loaded_backends()[0], (None,) * len(names), shape)  # planning looks at none
    part = Part("", _DTYPE, Goal.FOLD, shape * len(names), no_arrays, is_in_host_memory=True)
    return Entry(flatten(None)[1], (LeafForm(1),), (part,), names, names)


def _priced(ops: CrossDeviceOps, words: str, entry: Entry, machine: Topology, nbytes: int) -> Candidate:
    times = MovementTimes(ops.plan_entries((entry,)), machine)
    is_large = len(machine.devices) > MOST_SIMULATED
    return Candidate(ops, words, times.predicted_s(nbytes) if is_large else times.simulated_s(nbytes))
