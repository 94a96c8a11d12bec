"""Prices ops between some devices of a machine: the plans that they make, simulated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from treefold.backends import loaded_backends
from treefold.calls.entry import Entry, LeafForm, Part
from treefold.devices import device_type
from treefold.dtypes import itemsize
from treefold.errors import MissingExtraError
from treefold.errors.words import bytes_in_words, counted, seconds_in_words
from treefold.execution import Operand
from treefold.execution.gpus import nccl_refusal
from treefold.ops.base import CrossDeviceOps
from treefold.ops.cross_device_ops import HierarchicalCopyAllReduce, NcclAllReduce, ReductionToOneDevice
from treefold.plan.ir import Goal
from treefold.topology.cost import MovementTimes
from treefold.topology.cost.model import is_as_good
from treefold.topology.graph import Topology
from treefold.topology.planning.compare import MOST_SIMULATED
from treefold.topology.planning.ring import pack_rings
from treefold.values import flatten

_DTYPE = "float32"


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
    """Return what every candidate takes to all-reduce ``nbytes`` bytes of float32 between these devices.

    ``machine`` is what trees are planned for, ``here`` the part of it that has these devices, on which all are priced.
    """
    entry = _one_value(tuple(names), nbytes)
    count = len(here.devices)
    found = [
        _priced(ReductionToOneDevice(), "ReductionToOneDevice", entry, here, nbytes),
        _priced(HierarchicalCopyAllReduce(1), "HierarchicalCopyAllReduce in one pack", entry, here, nbytes),
        _priced(
            HierarchicalCopyAllReduce("auto"),
            f"HierarchicalCopyAllReduce in {counted(count, 'pack')}",
            entry,
            here,
            nbytes,
        ),
    ]
    left_out = []
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
    """Return an array of float32 on every device, as validation leaves it; whether they exist is not asked here."""
    shape = (max(1, nbytes // itemsize(_DTYPE)),)
    no_arrays = Operand(loaded_backends()[0], (None,) * len(names), shape)  # planning looks at none
    part = Part("", _DTYPE, Goal.FOLD, shape * len(names), no_arrays, is_in_host_memory=True)
    return Entry(flatten(None)[1], (LeafForm(1),), (part,), names, names)


def _priced(ops: CrossDeviceOps, words: str, entry: Entry, machine: Topology, nbytes: int) -> Candidate:
    times = MovementTimes(ops.plan_entries((entry,)), machine)
    is_large = len(machine.devices) > MOST_SIMULATED
    return Candidate(ops, words, times.predicted_s(nbytes) if is_large else times.simulated_s(nbytes))
