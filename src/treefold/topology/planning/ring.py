"""Rings: every device passes on to the next one; as many side by side as the links have room for.

NCCL and RCCL move large values like this, so it is what other plans have to be compared with.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from treefold.topology.cost.model import LAUNCH_S
from treefold.topology.cost.routes import alpha_s, alternatives
from treefold.topology.graph import Topology
from treefold.topology.planning.port_rates import port_rates
from treefold.topology.planning.ring_search import (
    Route,
    around,
    find_rings,
    host_groups,
    most_rings,
    shortest_hops,
)
from treefold.topology.planning.tree_packing import Tree

_MOST_WIDTHS = 8


@dataclass(frozen=True, slots=True)
class RingPacking:
    """Rings that share no capacity: ``orders`` of the devices, the last of each sends to its first.

    ``bytes_per_s``: what every link of every ring carries for it; the rings have equal parts of the values.
    ``alpha_s``: the latency of a hop, on average over the n − 1 that values take to their root.
    """

    orders: tuple[tuple[str, ...], ...]
    bytes_per_s: Fraction
    alpha_s: float

    @property
    def total(self) -> Fraction:
        """Bytes per second of all rings together, each link of theirs counted once."""
        return len(self.orders) * self.bytes_per_s

    @property
    def trees(self) -> tuple[Tree, ...]:
        """All rings as trees: n packs per ring, whose shares are equal."""
        count = len(self.orders)
        found = [tree for order in self.orders for tree in ring_trees(order)]
        return tuple(Tree(tree.share / count, tree.root, tree.up, tree.down) for tree in found)

    def predict_s(self, nbytes: float) -> float:
        """Return T = 2·(n − 1)·(alpha + S/(n·c)), launch included: ``nbytes`` bytes per device along the rings.

        Every one of n packs goes around the ring to its root and around once more. Source: Patarasuk and Yuan 2009.
        """
        count = len(self.orders[0])
        if count == 1:
            return 0.0
        return LAUNCH_S + 2 * (count - 1) * (self.alpha_s + nbytes / (count * float(self.total)))


def ring_trees(order: Sequence[str]) -> tuple[Tree, ...]:
    """Return the trees that together are a ring: n packs, the i-th folded around the ring up to its i-th device.

    From there its result goes on around. Every link of the ring carries 2·(n − 1)/n of the values. ``order``: the
    devices; the last one sends to the first.

    >>> [tree.root for tree in ring_trees(["gpu:0", "gpu:1", "gpu:2"])]
    ['gpu:0', 'gpu:1', 'gpu:2']
    """
    count = len(order)
    trees = []
    for root in range(count):
        # Begins behind the root and ends at it: the fold passes every device once before it arrives.
        around = [order[(root + 1 + position) % count] for position in range(count)]
        up = tuple(itertools.pairwise(around))
        down = tuple(itertools.pairwise((order[root], *around[:-1])))
        trees.append(Tree(Fraction(1, count), order[root], up, down))
    return tuple(trees)


def pack_rings(topology: Topology) -> RingPacking:
    """Return rings through all devices, as NCCL packs them: those of one width that together carry most.

    One per direction of each NVLink or xGMI that rings can use, one per NIC between hosts, one through a switch at the
    rate of its ports. At each of the widths that links have, rings are taken out of the links one after another, along
    shortest routes, until none is left. Where devices make no ring, they forward.

    >>> from treefold.topology import known_topology
    >>> packing = pack_rings(known_topology("ring:4"))
    >>> packing.orders
    (('gpu:0', 'gpu:1', 'gpu:2', 'gpu:3'), ('gpu:0', 'gpu:3', 'gpu:2', 'gpu:1'))
    >>> float(packing.bytes_per_s)
    25000000000.0
    """
    devices = topology.devices
    if len(devices) == 1:
        return RingPacking((devices,), Fraction(0), 0.0)
    hops, hosts = shortest_hops(topology), host_groups(topology)
    # Hosts of a cluster are mostly alike, so the rings within one, opened, are likely pieces of rings through all.
    inner = pack_rings(topology.restricted(hosts[0])).orders if len(hosts) > 1 else ()
    # Only links that rings can use count: a PCIe link beside NVLinks is on no shortest route.
    used = {link for route in hops.values() for link in itertools.pairwise(route)}
    narrowest = min((rate for host in hosts if len(hosts) > 1 for rate in port_rates(topology, host)), default=None)
    best = RingPacking((), Fraction(0), 0.0)
    for width in reversed(_widths(topology)):  # of equals the fewer and wider
        # A link has room for as many rings of this width as fit into it side by side.
        slots = {ends: int(capacity // width) for ends, capacity in topology.capacities.items()}
        most = most_rings(devices, {link: slots[link] for link in used})
        most = most if narrowest is None else min(most, int(narrowest // width))
        if most * width > best.total:  # a search takes long: widths that cannot win are not searched
            found = find_rings(topology, hops, slots, most=most, inner=inner)
            if len(found) * width > best.total:
                slowest = max(_latency_s(topology, [hops[pair] for pair in around(order)]) for order in found)
                best = RingPacking(found, width, slowest)
    return best if best.orders else _forwarded(topology)


def _widths(topology: Topology) -> list[Fraction]:
    """Return the widths of links, the narrowest first; of many, as measured links have, a few from end to end."""
    found = sorted(set(topology.capacities.values()))
    if len(found) <= _MOST_WIDTHS:
        return found
    return [found[position * (len(found) - 1) // (_MOST_WIDTHS - 1)] for position in range(_MOST_WIDTHS)]


def _forwarded(topology: Topology) -> RingPacking:
    """Return one ring where links join the devices to no ring, as in a line: some hops go through other devices."""
    order = [topology.devices[0]]
    todo = [topology.devices[0]]
    hops = shortest_hops(topology)
    while todo:  # follow a tree: such a ring crosses every edge about once in each direction
        beside = next((device for source, device in hops if source == todo[-1] and device not in order), None)
        if beside is None:
            todo.pop()
        else:
            order.append(beside)
            todo.append(beside)
    routes = [alternatives(topology, *pair)[0] for pair in around(order)]
    # One ring may cross a link several times here, and shares its width among these crossings.
    load = Counter(link for route in routes for link in itertools.pairwise(route))
    width = min(topology.capacities[link] / count for link, count in load.items())
    return RingPacking((tuple(order),), width, _latency_s(topology, routes))


def _latency_s(topology: Topology, routes: Sequence[Route]) -> float:
    """Return the mean latency of a ring's hops without the fastest: a pack crosses all hops but one, at worst these."""
    alphas = sorted(alpha_s(topology, route) for route in routes)
    return sum(alphas[1:]) / (len(alphas) - 1)
