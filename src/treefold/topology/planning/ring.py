"""Rings, as many side by side as the links have room for; every device passes values on to the next.

NCCL and RCCL move large values like this, so rings are the baseline for other plans.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from treefold.topology.cost.routes import LAUNCH_S, alpha_s, alternatives
from treefold.topology.graph import Topology, joined_groups
from treefold.topology.planning.host_shares import port_rates
from treefold.topology.planning.tree_packing import SpanningTree

_MOST_WIDTHS = 8
Ends = tuple[str, str]
Route = tuple[str, ...]
Slots = Mapping[Ends, int]  # for how many rings of one width a directed link has room
Order = tuple[str, ...]
Links = tuple[Ends, ...]
_MOST_RINGS = 32  # As many channels as NCCL opens.
_MOST_STEPS, _MOST_ATTEMPTS = 50_000, 100  # For rings of one width; known machines need some hundred steps.
_MOST_IN_VAIN = 10  # Attempts without any ring before the search ends.
_STEPS_PER_DEVICE = 20  # For one ring; then the search restarts with another order of the links.


@dataclass(frozen=True, slots=True)
class RingPacking:
    """Rings that share no capacity. Each has an equal part of the values.

    Attributes:
        orders: The devices of each ring; the last one sends to the first.
        bytes_per_s: The bandwidth that every link has for each ring on it.
        alpha_s: The latency of a hop: the mean over the n − 1 hops of a pack to its root.

    """

    orders: tuple[tuple[str, ...], ...]
    bytes_per_s: Fraction
    alpha_s: float

    @property
    def total(self) -> Fraction:
        """Bytes per second of all rings together, in one direction around each."""
        return len(self.orders) * self.bytes_per_s

    @property
    def trees(self) -> tuple[SpanningTree, ...]:
        """All rings as trees of equal share: n packs per ring."""
        count = len(self.orders)
        found = [tree for order in self.orders for tree in ring_trees(order)]
        return tuple(SpanningTree(tree.share / count, tree.root, tree.up, tree.down) for tree in found)

    def predict_s(self, nbytes: float) -> float:
        """Return T = 2·(n − 1)·(alpha + S/(n·c)), launch included, for ``nbytes`` bytes per device along the rings.

        Each of n packs goes around the ring to its root, and its result around once more. Source: Patarasuk and Yuan
        2009.
        """
        count = len(self.orders[0])
        if count == 1:
            return 0.0
        return LAUNCH_S + 2 * (count - 1) * (self.alpha_s + nbytes / (count * float(self.total)))


def ring_trees(order: Sequence[str]) -> tuple[SpanningTree, ...]:
    """Return the trees that together are a ring: n packs, the i-th folded around the ring up to its i-th device.

    From there its result goes on around the ring. Every link of the ring carries 2·(n − 1)/n of the values. ``order``:
    the devices; the last one sends to the first.

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
        trees.append(SpanningTree(Fraction(1, count), order[root], up, down))
    return tuple(trees)


def pack_rings(topology: Topology) -> RingPacking:
    """Return rings through all devices, as NCCL packs them: of all widths, the one at which rings together carry most.

    There is a ring per direction of each NVLink or xGMI that rings can use, and a ring per NIC between hosts. Through a
    switch there is one ring, at the rate of its ports. At each width that links have, rings are removed from the links
    one after another, along shortest routes, until none is left. If devices form no ring, they forward.

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
    """Return the widths of links, the narrowest first. If there are many, as of measured links, a few are kept."""
    found = sorted(set(topology.capacities.values()))
    if len(found) <= _MOST_WIDTHS:
        return found
    return [found[position * (len(found) - 1) // (_MOST_WIDTHS - 1)] for position in range(_MOST_WIDTHS)]


def _forwarded(topology: Topology) -> RingPacking:
    """Return one ring for devices that links do not join to a ring, as in a line: some hops pass other devices."""
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
    """Return the mean latency of a ring's hops without the fastest: the worst case of a pack, which skips one hop."""
    alphas = sorted(alpha_s(topology, route) for route in routes)
    return sum(alphas[1:]) / (len(alphas) - 1)


def around(order: Sequence[str]) -> Iterator[Ends]:
    """Return the hops of a ring, including the one from the last device to the first."""
    return zip(order, (*order[1:], order[0]), strict=True)


def shortest_hops(topology: Topology) -> dict[Ends, Route]:
    """Return a route for each pair of devices joined without a third: the shortest, and of these the widest."""
    found: dict[Ends, Route] = {}
    for start in topology.devices:
        # Breadth first, so routes are shortest; a layer is settled only when all of it has been seen, so that among the
        # shortest the widest wins. Devices are reached, but not passed: the next layer begins at carriers alone.
        widest: dict[str, tuple[Fraction, Route]] = {start: (max(topology.capacities.values()), (start,))}
        layer = [start]
        while layer:
            fresh: dict[str, tuple[Fraction, Route]] = {}
            for name in layer:
                width, route = widest[name]
                for other in topology.neighbours(name):
                    reached = min(width, topology.capacity(name, other))
                    if other not in widest and (other not in fresh or reached > fresh[other][0]):
                        fresh[other] = reached, (*route, other)
            widest |= fresh
            layer = [name for name in fresh if topology.kinds[name] != "device"]
            found |= {(start, name): route for name, (_, route) in fresh.items() if topology.kinds[name] == "device"}
    return found


def most_rings(devices: Sequence[str], slots: Slots) -> int:
    """Return an upper bound on the number of rings: each uses one link out of every device and one into it."""
    out, into = Counter[str](), Counter[str]()
    for (source, target), count in slots.items():
        out[source] += count
        into[target] += count
    return min(_MOST_RINGS, *(min(out[device], into[device]) for device in devices))


def find_rings(
    topology: Topology, hops: Mapping[Ends, Route], slots: Slots, *, most: int, inner: Sequence[Order]
) -> tuple[Order, ...]:
    """Return as many rings as a search finds, ``most`` at most; more may fit.

    Each attempt tries the links in another order. ``inner``: rings of the first of several hosts. Every second attempt
    tries these, opened to paths, and the images of each ring that it finds. On most machines these are the other rings.
    """
    best: list[Order] = []
    hosts = host_groups(topology)
    likely = list(_opened(inner, hosts))
    room = _Room(topology.devices, hops)
    for attempt in range(_MOST_ATTEMPTS):
        # Seeded by the attempt, so that a machine has the same rings in every process.
        rng = random.Random(attempt)  # noqa: S311 - no secret
        room.empty(slots, rng if attempt else None)
        # Every second attempt uses no images: those of one ring fill links in a pattern that may be a dead end.
        found: list[Order] = []
        for order in likely if attempt % 2 == 0 else ():
            if len(found) < most and room.take(order):
                found.append(order)
        while len(found) < most and (order := room.take_ring()):
            found.append(order)
            for image in _images(order, hosts) if attempt % 2 == 0 else ():
                if len(found) < most and room.take(image):
                    found.append(image)
        best = max(best, found, key=len)
        if len(best) >= most or (attempt >= _MOST_IN_VAIN and not best):
            break
        rng.shuffle(likely)
    return tuple(best)


def host_groups(topology: Topology) -> list[Order]:
    """Return the devices by host: groups that are joined without a NIC and without a link of kind ``"net"``."""
    local = {(link.source, link.target) for link in topology.links if link.kind != "net"}
    names = [node.name for node in topology.nodes if node.kind != "nic"]
    beside = {name: [o for o in names if {(name, o), (o, name)} <= local] for name in names}
    groups = (set(group) for group in joined_groups(names, beside.__getitem__))
    return [order for group in groups if (order := tuple(name for name in topology.devices if name in group))]


def _opened(inner: Sequence[Order], hosts: Sequence[Order]) -> Iterator[Order]:
    """Yield rings over an even number of equal hosts, each made from one of the rings of the first host.

    The host's ring is opened to a path, which the hosts follow forwards and backwards in turn. A ring that is opened
    before a device enters through that device's NIC and leaves through the NIC of the device before it.
    """
    size = len(hosts[0])
    if len(hosts) % 2 or size == 1 or {len(host) for host in hosts} != {size}:
        return
    positions = [[hosts[0].index(device) for device in order] for order in inner]
    for start in range(size):
        for turn in range(len(positions)):
            order = positions[(start + turn) % len(positions)]
            first = order.index(start)
            # Backwards on every second host: each path ends on the rail with which the next host's begins.
            path = order[first:] + order[:first]
            yield tuple(host[at] for number, host in enumerate(hosts) for at in path[:: -1 if number % 2 else 1])


def _images(order: Order, hosts: Sequence[Order]) -> Iterator[Order]:
    """Yield a ring shifted by 1, 2 … positions in each of several equal hosts, then its reverse."""
    size = len(hosts[0])
    if len(hosts) > 1 and {len(host) for host in hosts} == {size}:
        position = {device: (host, number) for host in hosts for number, device in enumerate(host)}
        for shift in range(1, size):
            yield tuple(host[(number + shift) % size] for host, number in map(position.__getitem__, order))
    # Links are wide in both directions on most machines, and a ring uses one of them: its reverse uses the other.
    yield (order[0], *order[:0:-1])


class _Room:
    """The free slots of each link during a search; a slot has the width of one ring."""

    def __init__(self, devices: Sequence[str], hops: Mapping[Ends, Route]) -> None:
        self._devices, self._steps = devices, iter(range(_MOST_STEPS))
        self._links = {pair: tuple(itertools.pairwise(route)) for pair, route in hops.items()}
        # By device: where its hops lead and where they come from, with the links of each.
        self._next: dict[str, list[tuple[str, Links]]] = {device: [] for device in devices}
        self._before: dict[str, list[tuple[str, Links]]] = {device: [] for device in devices}
        for (source, target), links in self._links.items():
            self._next[source].append((target, links))
            self._before[target].append((source, links))

    def empty(self, slots: Slots, rng: random.Random | None) -> None:
        """Free all slots; with an ``rng``, equally wide links are tried in random order from now on."""
        self._slots, self._rng = dict(slots), rng
        self._free = Counter(node for link, count in slots.items() if count for node in link)  # links that have room

    def take_ring(self) -> Order:
        """Find a ring in the free slots, take them and return it; () if the search gives up after a number of steps.

        The search is depth first, with a stack of its own: there may be more devices than Python has frames.
        """
        path = [max(self._devices, key=self._free.__getitem__)]
        seen = set(path)
        todo = [iter(self._onward(path, seen))]
        left = _STEPS_PER_DEVICE * len(self._devices)
        while todo:
            device = next(todo[-1], None) if left else None
            # At 0 it stays: no device is tried any more, so the path is given back hop by hop, and the search ends.
            left -= bool(left)
            if device is not None and next(self._steps, None) is not None:
                # The slot is taken at once: two hops of one path may share a link, which has room for both or not.
                self._use((path[-1], device), 1)
                path.append(device)
                seen.add(device)
                if len(path) == len(self._devices) and self._width(self._links.get((device, path[0]), ())):
                    self._use((device, path[0]), 1)
                    return tuple(path)
                todo.append(iter(self._onward(path, seen)))
            else:  # a dead end: give the last hop back and try the next device before it
                todo.pop()
                seen.discard(path[-1])
                if len(path) > 1:
                    self._use((path[-2], path[-1]), -1)
                path.pop()
        return ()

    def take(self, order: Order) -> bool:
        """Take the slots of a ring if all are free."""
        used: list[Ends] = []
        for pair in around(order):
            if not self._width(self._links.get(pair, ())):
                for other in used:
                    self._use(other, -1)
                return False
            # Hops of one ring may share a link, so each is taken before the room for the next is looked at.
            self._use(pair, 1)
            used.append(pair)
        return True

    def _onward(self, path: Sequence[str], seen: set[str]) -> list[str]:
        """Return the devices to which a path may go next: over the widest links first.

        Of equally wide links, those to devices with the fewest free links come first, as in Warnsdorff's rule for
        knight's tours. A device that is left for later may become unreachable.
        """
        here, first = path[-1], path[0]
        # Without this test the search would notice only at full length, after all orders of the devices in between.
        if not any(self._width(links) for device, links in self._before[first] if device not in seen):
            return []  # no device is left that leads back to the first one
        widths = {device: self._width(links) for device, links in self._next[here] if device not in seen}
        found = [device for device, width in widths.items() if width]
        if self._rng is not None:
            self._rng.shuffle(found)
        return sorted(found, key=lambda device: (-widths[device], self._free[device]))

    def _width(self, links: Links) -> int:
        """Return the number of rings for which the links of a hop still have room."""
        # Called a million times on large machines: ``map`` is faster than a list or a generator.
        if len(links) == 1:
            return self._slots[links[0]]
        return min(map(self._slots.__getitem__, links)) if links else 0

    def _use(self, pair: Ends, count: int) -> None:
        """Take a slot of every link of a hop (1), or free it again (-1)."""
        for link in self._links[pair]:
            self._slots[link] -= count
            if self._slots[link] == (count < 0):  # the last slot was taken, or is the first to be there again
                for node in link:
                    self._free[node] -= count
