"""The table of methods by name: the words for each, and the function that makes it on a machine.

To add one, write a function that returns a ``Method``, and its line in ``METHODS``, which says where it is compared.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import NamedTuple

from treefold.errors.words import counted
from treefold.keyed import grouped
from treefold.planners.direct import direct
from treefold.planners.method import Method
from treefold.planners.star import one_shot, star, two_shot
from treefold.planners.two_level import two_level
from treefold.topology.graph import Topology
from treefold.topology.planning.host_shares import host_shares
from treefold.topology.planning.ring import RingPacking, host_groups, pack_rings, shortest_hops
from treefold.topology.planning.tree_packing import Packer, along, along_packing

PLAN, TABLE, BASELINE = "plan", "table", "baseline"
DIRECT, RINGS = "direct", "rings"


class MachineMethods:
    """The methods of one machine, each made once, from one tree packer and one search for rings.

    Names are the keys of ``METHODS``. A number after ``#`` is a number of trees, or of edges between a root and its
    devices: ``"trees#8"``, ``"shallow#2"``.
    """

    def __init__(self, topology: Topology) -> None:
        """Remember the machine; nothing is planned yet."""
        self.topology = topology
        self.packer = Packer(topology)
        self._made: dict[str, Method] = {}
        self._along: dict[int, Method] = {}

    def __getitem__(self, name: str) -> Method:
        """Return the method of this name between all devices of the machine.

        Raises:
            MissingExtraError: SciPy is not installed, and the method has trees.

        """
        if name not in self._made:
            number = name.partition("#")[2]
            self._made[name] = entry_of(name).on(self, int(number) if number else None)
        return self._made[name]

    def trees(self, packs: int | None = None, *, max_depth: int | None = None) -> Method:
        """Return the method along the packer's trees; the same for the same packing."""
        packing = self.packer.packing(packs, max_depth=max_depth)
        return self._along.setdefault(id(packing), along_packing(packing))  # the packer keeps it

    @functools.cached_property
    def rings(self) -> RingPacking:
        """The rings of the machine."""
        return pack_rings(self.topology)

    @functools.cached_property
    def hosts(self) -> tuple[tuple[int, ...], ...]:
        """The devices of each host, by their indexes among the machine's devices."""
        place = {device: number for number, device in enumerate(self.topology.devices)}
        return tuple(tuple(place[device] for device in devices) for devices in host_groups(self.topology))

    @property
    def shallow(self) -> str:
        """The name of the method that uses trees of least depth."""
        return f"shallow#{self.radius}"

    @property
    def radius(self) -> int:
        """The least depth of a tree over all devices, if an edge is a route that passes no device."""
        return min(max(hops.values()) for hops in self._hops.values())

    @property
    def centre(self) -> str:
        """The device from which the farthest other is the fewest edges away, and then all others together."""
        return min(self._hops.items(), key=lambda item: (max(item[1].values()), sum(item[1].values())))[0]

    @functools.cached_property
    def _hops(self) -> dict[str, dict[str, int]]:
        """The number of edges between every two devices, if devices forward."""
        adjacent = grouped(shortest_hops(self.topology))
        found = {}
        for start in self.topology.devices:
            hops, layer = {start: 0}, [start]
            for device in layer:
                fresh = set(adjacent.get(device, ())).difference(hops)
                hops.update(dict.fromkeys(fresh, hops[device] + 1))
                layer += fresh
            found[start] = hops
        return found


class MethodEntry(NamedTuple):
    """The words for a method, and the function that makes it.

    Attributes:
        label: Its name in tables of times.
        reason: The reason that a table of sizes gives for it.
        on: Makes the method on a machine, given the number in its name.
        use: A method is ``PLAN`` if ``treefold plan`` and tables of sizes may choose it, ``TABLE`` if only tables may,
            and ``BASELINE`` if others use it.

    """

    label: str
    reason: str
    on: Callable[[MachineMethods, int | None], Method]
    use: str = PLAN


def _direct(machine: MachineMethods) -> Method:
    """Return the direct method with shares by port speed. Hosts of several devices fold theirs first, as trees do."""
    devices = machine.topology.devices
    groups = [[devices[place] for place in places] for places in machine.hosts]
    shares = host_shares(machine.topology, groups, [1] * len(groups))
    return direct(machine.hosts, shares, is_folded_per_host=len(groups) < len(devices), devices=devices)


#: The simplest first.
METHODS: Mapping[str, MethodEntry] = {
    DIRECT: MethodEntry(
        "direct",
        "two copies after each other between hosts, and every host folds its share",
        lambda machine, _: _direct(machine),
    ),
    "oneshot": MethodEntry("one shot", "one copy after none, so that latency is paid once", lambda *_: one_shot()),
    "twoshot": MethodEntry(
        "two shots",
        "two copies after each other, and every device folds an equal part",
        lambda machine, _: two_shot(machine.topology.devices),
    ),
    "star": MethodEntry(
        "star",
        "two copies after each other through the device nearest to all",
        lambda machine, _: star(machine.centre),
        TABLE,
    ),
    "tree": MethodEntry(
        "one tree",
        "one tree of least depth",
        lambda machine, _: machine.trees(1, max_depth=machine.radius),
    ),
    "shallow": MethodEntry(
        "shallow trees",
        "trees of least depth, side by side",
        lambda machine, depth: machine.trees(max_depth=depth),
    ),
    "trees": MethodEntry(
        "trees",
        "trees that fill the links, chunks in flight on all of them",
        lambda machine, packs: machine.trees(packs),
    ),
    RINGS: MethodEntry(
        "rings",
        "every device passes on to the next, around rings that share no capacity",
        lambda machine, _: along(
            machine.rings.trees, f"{counted(len(machine.rings.orders), 'ring')} packed into the links of the topology"
        ),
        BASELINE,  # NCCL's, and ours where nothing is quicker
    ),
    "onedevice": MethodEntry(
        "ReductionToOneDevice", "", lambda machine, _: star(machine.topology.devices[0]), BASELINE
    ),
    "twolevel": MethodEntry("TensorFlow's two-level tree", "", lambda *_: two_level(), BASELINE),
}


def entry_of(name: str) -> MethodEntry:
    """Return the entry of a method, whatever the number in its name."""
    return METHODS[name.partition("#")[0]]
