"""Which method for which size on this machine, by predicted time, and why."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from treefold.cost import predict_s, simulate
from treefold.cost.model import LAUNCH_S, in_switch_s, is_as_good
from treefold.errors import ArgumentError
from treefold.plan import Plan
from treefold.planners.builder import LeafWork
from treefold.planners.methods import one_array, plan_packs
from treefold.planners.ring import RingPacking, pack_rings
from treefold.planners.size_table import SizeTable, from_choices, size_text, split_method
from treefold.planners.tree_packing import plan_trees
from treefold.planners.ways import radius, way_of
from treefold.topology import Topology

SMALLEST, LARGEST = 2**12, 2**28  # bytes between which methods are compared; beyond, what is best stays best
MOST_SIMULATED = 16  # devices of machines whose every chunk is followed; beyond, the closed form must do
_NEAR = 2.0  # methods that the closed form puts within this factor of the best are simulated
_PACKS = 8  # trees of an equal share that a table may offer instead of the full packing
_FINENESS = 2.0**0.5  # borders between methods are sought to this factor of size


@dataclass(frozen=True, slots=True)
class Choice:
    """The table, and a sentence for each of its rows; ``predicted``: seconds by method, of every size compared."""

    table: SizeTable
    reasons: tuple[str, ...]
    predicted: Mapping[int, Mapping[str, float]]


def choose(
    topology: Topology, devices: Iterable[str] | None = None, *, in_switch_bytes_per_s: float | None = None
) -> Choice:
    """Return the quickest method for every size from 4 KiB on, between one replica on each of these devices.

    Compared: one shot, two shots, a star, one tree at a centre, trees of least depth, eight trees, the full packing,
    rings. Up to 16 devices the best of them are simulated, beyond they are priced in closed form, as rings always are.
    ``in_switch_bytes_per_s``: the width of a port of a switch that reduces, such as NVLink SHARP, which the vendor's
    library then uses: of another class than any tree, and compared by its own closed form.

    Raises:
        TopologyError: devices that are not there.
        ArgumentError: ``in_switch_bytes_per_s`` is not a number above 0.
        MissingExtraError: SciPy is not installed.

    """
    machine = topology if devices is None else topology.restricted(devices)
    if in_switch_bytes_per_s is not None and not 0 < in_switch_bytes_per_s < math.inf:
        raise ArgumentError.in_switch(in_switch_bytes_per_s)
    if len(machine.devices) == 1:
        return Choice(SizeTable.parse("star:inf"), ("There is one device: nothing travels.",), {})
    race = Race(machine, in_switch_bytes_per_s)
    sizes = [SMALLEST * 4**place for place in range(round(math.log(LARGEST / SMALLEST, 4)) + 1)]
    choices = []
    for low, high in zip([SMALLEST, *sizes], sizes, strict=False):
        choices += race.borders(low, high)
        choices.append((high, race.best(high)))
    table = from_choices(choices)
    return Choice(table, tuple(race.reasons(table)), race.seconds)


def plan_method(method: str, topology: Topology, work: Sequence[LeafWork] | None = None) -> Plan:
    """Return the plan of a method of a table, by default of one array on every device of the topology.

    Raises:
        ArgumentError: an unknown method, or ``"vendor"``, which is no plan of ours.
        TopologyError: the work is on devices that the topology does not have.

    """
    if work is None:
        work = one_array(topology.devices)
    way = way_of(method, topology.restricted(dict.fromkeys(work[0].sources)))
    if way.packing is not None:
        return plan_trees(work, way.packing)
    return plan_packs(work, way.shares, way.add_pack, way.algorithm)


@dataclass
class Race:
    """Methods on one machine, each planned once and priced at the sizes asked for; rings are priced without a plan."""

    topology: Topology
    in_switch_bytes_per_s: float | None = None
    seconds: dict[int, dict[str, float]] = field(default_factory=dict)

    @functools.cached_property
    def plans(self) -> dict[str, Plan]:
        """The plan of every method that differs from the others, rings left out."""
        depth = radius(self.topology)
        methods = ["oneshot", "twoshot", "star", "tree", "trees", f"shallow#{depth}", f"trees#{_PACKS}"]
        return {method: plan_method(method, self.topology) for method in methods}

    @functools.cached_property
    def rings(self) -> RingPacking:
        """The rings of the machine."""
        return pack_rings(self.topology)

    def best(self, nbytes: int) -> str:
        """Return the quickest method; of those as good, the first."""
        if nbytes not in self.seconds:
            self.seconds[nbytes] = self._price(nbytes)
        times = self.seconds[nbytes]
        least = min(times.values())
        return next(
            method
            for method in [*self.plans, "rings", "vendor"]
            if method in times and is_as_good(times[method], least)
        )

    def borders(self, low: int, high: int) -> list[tuple[float, str]]:
        """Return up to which size between these each method but the last is the quickest."""
        if self.best(low) == self.best(high) or high <= low * _FINENESS:
            return [] if self.best(low) == self.best(high) else [(float(low), self.best(low))]
        middle = round(math.sqrt(low * high) / 1024) * 1024
        if not low < middle < high:
            return [(float(low), self.best(low))]
        return [*self.borders(low, middle), *self.borders(middle, high)]

    def _price(self, nbytes: int) -> dict[str, float]:
        about = {method: predict_s(plan, self.topology, nbytes) for method, plan in self.plans.items()}
        if len(self.topology.devices) <= MOST_SIMULATED:
            near = min(about.values()) * _NEAR
            exact = {
                method: simulate(self.plans[method], self.topology, nbytes).duration_s
                for method, seconds in about.items()
                if seconds <= near
            }
            about = exact
        about["rings"] = self.rings.predict_s(nbytes)
        if self.in_switch_bytes_per_s is not None:
            alpha_s = 2 * max(self.topology.alphas.values())
            about["vendor"] = LAUNCH_S + in_switch_s(
                nbytes, count=len(self.topology.devices), port_bytes_per_s=self.in_switch_bytes_per_s, alpha_s=alpha_s
            )
        return about

    def reasons(self, table: SizeTable) -> list[str]:
        """Return a sentence per row: what the method is good at, and by how much at the row's upper end."""
        sentences, low = [], 0.0
        for row in table.rows:
            size = max(size for size in self.seconds if low < size <= row.up_to_bytes)
            times = sorted((seconds, method) for method, seconds in self.seconds[size].items())
            mine = self.seconds[size][row.method]
            others = [(seconds, method) for seconds, method in times if method != row.method]
            text = f"{_range(low, row.up_to_bytes)}: {row.method}, {_WHY[split_method(row.method)[0]]}; "
            text += f"{mine * 1e6:.4g} µs at {size_text(size)}B"
            sentences.append(f"{text}, {others[0][1]} {others[0][0] * 1e6:.4g} µs." if others else f"{text}.")
            low = row.up_to_bytes
        return sentences


def _range(low: float, high: float) -> str:
    return f"Above {size_text(low)}B" if high == math.inf else f"Up to {size_text(high)}B"


_WHY = {
    "oneshot": "one copy after none, so that latency is paid once",
    "twoshot": "two copies after each other, and every device folds an equal part",
    "star": "two copies after each other through the device nearest to all",
    "tree": "one tree of least depth",
    "shallow": "trees of least depth, side by side",
    "trees": "trees that fill the links, chunks in flight on all of them",
    "rings": "every device passes on to the next, around rings that share no capacity",
    "vendor": "the switch folds, which no tree of devices can match",
}
