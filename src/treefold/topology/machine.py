"""Facts about a machine as tools report them: sockets, PCIe trees below them, and links between GPUs beside PCIe.

Facts are collected in any order, then built into a topology. Nodes that lead to no device and no NIC are left out, and
the devices come first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations

from treefold.devices import Device
from treefold.topology import rates
from treefold.topology.gpus import LINK_NOUNS, MissingLinks, gpu_model
from treefold.topology.graph import Topology, TopologyBuilder

_SLOT_ALPHA_US = {"device": rates.ALPHA_PCIE_US, "nic": rates.ALPHA_NIC_US, "switch": 0.0}
_CLEARLY = rates.INTEL_P2P_SHARE - 0.01  # a port narrowed only by an Intel CPU's share is not slower
SWITCH_NAMES = {"nvlink": "nvswitch", "xgmi": "xgmi switch"}


@dataclass(frozen=True, slots=True)
class PcieNode:
    """A node of the PCIe tree: its kind, its parent, and the bandwidth to the parent."""

    kind: str
    parent: str
    gb_per_s: float


@dataclass(slots=True)
class MachineFacts:
    """Collects sockets, the PCIe tree and the links between GPUs; ``build`` gives the topology."""

    name: str = ""
    sockets: dict[str, float] = field(default_factory=dict)  # GB/s to another socket
    pcie: dict[str, PcieNode] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    hosts: dict[str, str] = field(default_factory=dict)  # The host of each socket, if there are several.
    unshown: str = ""  # The kind of links that GPUs may have and that this description could not show.
    ids: dict[str, tuple[str, str]] = field(default_factory=dict)  # PCI vendor and device of each device.
    _links: dict[tuple[str, str, str], float] = field(default_factory=dict)  # GB/s by both ends and kind.

    def add(self, name: str, kind: str, *, parent: str, gb_per_s: float) -> None:
        """Add a device, switch or NIC below a socket or switch, which may be added later."""
        self.pcie[name] = PcieNode(kind, parent, gb_per_s)

    def add_link(self, device: str, end: str, *, gb_per_s: float, kind: str) -> None:
        """Add a link of a device beside PCIe; links of one kind to one end add up.

        ``end`` is another device, which reports the same link, or a socket, or ``SWITCH_NAMES[kind]``. The latter is
        one switch that stands for all switch chips, as in NCCL.
        """
        self._links[device, end, kind] = self._links.get((device, end, kind), 0.0) + gb_per_s

    @property
    def has_fast_links(self) -> bool:
        """True if there are links beside PCIe."""
        return bool(self._links)

    def build(self, *, every_pair: bool) -> Topology:
        """Return the topology.

        ``every_pair``: True links every two sockets directly, as NCCL does. Otherwise more than two share a switch,
        which is the narrower interpretation.

        Raises:
            TopologyError: see ``Topology``.

        """
        builder = TopologyBuilder(self.name)
        needed = self._needed()
        devices = [name for name, node in self.pcie.items() if node.kind == "device"]
        for name in sorted(devices, key=_by_number):
            builder.device(name)
        for name in self.sockets:
            if name in needed:
                builder.host(name)
        for name, node in self.pcie.items():
            if node.kind != "device" and name in needed:
                (builder.nic if node.kind == "nic" else builder.switch)(name)
        self._add_fast_links(builder)
        self._add_slots(builder, needed)
        for host in dict.fromkeys(self.hosts.get(name, "") for name in self.sockets):
            here = {k: v for k, v in self.sockets.items() if k in needed and self.hosts.get(k, "") == host}
            join_sockets(builder, here, every_pair=every_pair)
        for note in dict.fromkeys(self.notes):
            builder.note(note)
        return builder.missing(self._missing() if len(devices) > 1 else None).build()

    def _missing(self) -> MissingLinks | None:
        """Return the links beside PCIe that were not added and that devices have, or may have, by their PCI ids."""
        linked = {name for device, end, kind in self._links if kind in LINK_NOUNS for name in (device, end)}
        models = [gpu_model(*ids) for device, ids in self.ids.items() if device not in linked]
        found = {model.name: model.kind for model in models if model is not None}
        if found:
            return MissingLinks(next(iter(found.values())), tuple(found))
        return MissingLinks(self.unshown) if self.unshown and not self.has_fast_links else None

    def _needed(self) -> set[str]:
        """Return the devices and NICs, all nodes above them, and sockets with links beside PCIe."""
        needed = {end for _, end, _ in self._links if end in self.sockets}
        for name, node in self.pcie.items():
            if node.kind != "switch":
                above = name
                while above not in needed:
                    needed.add(above)
                    if above not in self.pcie:
                        break
                    above = self.pcie[above].parent
        return needed

    def _add_slots(self, builder: TopologyBuilder, needed: set[str]) -> None:
        for name, node in self.pcie.items():
            if name in needed and node.parent:
                alpha_us = _SLOT_ALPHA_US[node.kind]
                builder.link(name, node.parent, gb_per_s=node.gb_per_s, alpha_us=alpha_us, kind="pcie")
        slowed = [
            name
            for name, node in self.pcie.items()
            if node.kind == "device" and node.gb_per_s * _CLEARLY > self._narrowest_above(node.parent)
        ]
        if slowed:
            self.notes.append(f"A PCIe port above {_some(slowed)} is narrower than the slot below it.")

    def _narrowest_above(self, name: str) -> float:
        narrowest = float("inf")
        while name in self.pcie:
            narrowest = min(narrowest, self.pcie[name].gb_per_s)
            name = self.pcie[name].parent
        return narrowest

    def _add_fast_links(self, builder: TopologyBuilder) -> None:
        """Add the links beside PCIe. If two devices report different bandwidths for their link, the narrower counts."""
        one_sided, unequal = [], []
        for (device, end, kind), there in self._links.items():
            gb_per_s, alpha_us = _summed(there), rates.ALPHA_NVLINK_US
            if end in self.pcie:
                back = self._links.get((end, device, kind))
                if back is None:
                    one_sided.append(f"{device} to {end}")
                elif _by_number(device) > _by_number(end):
                    continue  # added from its other end
                elif _summed(back) != gb_per_s:
                    unequal.append(f"{device} and {end}")
                    gb_per_s = min(gb_per_s, _summed(back))
            elif end not in self.sockets:
                alpha_us = rates.ALPHA_NVSWITCH_PORT_US
                if end not in builder:
                    builder.switch(end)
            builder.link(device, end, gb_per_s=gb_per_s, alpha_us=alpha_us, kind=kind)
        if one_sided:
            self.notes.append(f"Only one end names the links from {_some(one_sided)}; they are taken both ways.")
        if unequal:
            self.notes.append(f"The ends disagree on the links between {_some(unequal)}; the fewer are taken.")


def join_sockets(builder: TopologyBuilder, sockets: dict[str, float], *, every_pair: bool) -> None:
    """Link sockets with each other, by pairs or (more than two) through one switch; the slower end counts."""
    alpha_us = rates.ALPHA_BETWEEN_SOCKETS_US
    if every_pair or len(sockets) <= 2:  # noqa: PLR2004 - two sockets are one pair
        for a, b in combinations(sockets, 2):
            builder.link(a, b, gb_per_s=min(sockets[a], sockets[b]), alpha_us=alpha_us, kind="sys")
    else:
        builder.switch("between sockets")
        for name, gb_per_s in sockets.items():
            builder.link(name, "between sockets", gb_per_s=gb_per_s, alpha_us=alpha_us / 2, kind="sys")


def numa_topology(name: str, count: int, *, between_gb_per_s: float, notes: Sequence[str]) -> Topology:
    """Return NUMA nodes as devices from ``cpu:0``; only the bandwidth between sockets is known."""
    builder = TopologyBuilder(name)
    for number in range(count):
        builder.device(f"cpu:{number}")
    join_sockets(builder, {f"cpu:{number}": between_gb_per_s for number in range(count)}, every_pair=False)
    for note in notes:
        builder.note(note)
    if count > 1:
        builder.note(
            f"Between NUMA nodes {between_gb_per_s:g} GB/s are taken, as NCCL does between sockets of this CPU."
        )
    return builder.build()


def _summed(gb_per_s: float) -> float:
    """Round a sum of bandwidths, to drop rounding errors that depend on the order of the links."""
    return round(gb_per_s, 6)


def _by_number(device: str) -> tuple[str, int]:
    found = Device.parse(device)
    return found.type, found.index


def _some(names: list[str], most: int = 4) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
