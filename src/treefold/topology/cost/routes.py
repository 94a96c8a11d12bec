"""The links that a copy from one device to another crosses.

For each kind of link at the source (such as PCIe and NVLink), the routes are the shortest ones that start on that kind
and pass through no other device. If there are none, other devices forward: a plan may copy between devices that the
machine does not connect.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from treefold.keyed import grouped
from treefold.topology.graph import Topology

Ends = tuple[str, str]
Nodes = tuple[str, ...]  # of a route
_Before = dict[str, list[str]]  # by node: those from which shortest routes reach it
_MOST = 16  # alternatives of one pair and kind; fabrics have no more planes
_ROUNDS = 400
_WORTH = 0.99  # sharing must relieve the busiest link by more than 1 %
LAUNCH_S = 7e-6
_AS_GOOD = 1.01


@dataclass(frozen=True, slots=True)
class Route:
    """``nodes`` from sender to receiver, the ``share`` of each chunk that goes there, and the latency of all links."""

    nodes: tuple[str, ...]
    share: float
    alpha_s: float

    @property
    def links(self) -> tuple[Ends, ...]:
        """The directed links in order."""
        return tuple(itertools.pairwise(self.nodes))


def alternatives(topology: Topology, source: str, target: str) -> tuple[Nodes, ...]:
    """Return the routes from ``source`` to ``target``, as nodes; the shortest first, and of these the widest.

    >>> from treefold.topology import known_topology
    >>> alternatives(known_topology("a100_pcie_8gpu"), "gpu:0", "gpu:1")
    (('gpu:0', 'gpu:1'), ('gpu:0', 'cpu0', 'gpu:1'))
    """
    return Alternatives(topology)[source, target]


class Alternatives:
    """The routes between the devices of a machine, by (source, target): each found once, by a search per source."""

    def __init__(self, topology: Topology) -> None:
        """Remember the machine; nothing is searched yet."""
        self._topology = topology
        self._found: dict[Ends, tuple[Nodes, ...]] = {}
        self._searches: dict[tuple[str, bool], list[_Before]] = {}

    def __getitem__(self, ends: Ends) -> tuple[Nodes, ...]:
        """Return the routes of a pair, as ``alternatives`` does."""
        if ends not in self._found:
            self._found[ends] = self._between(*ends)
        return self._found[ends]

    def _between(self, source: str, target: str) -> tuple[Nodes, ...]:
        topology = self._topology
        found = self._routes(source, target, passes_devices=False)
        if not found:  # other devices forward
            found = self._routes(source, target, passes_devices=True)[:1]
        unique = dict.fromkeys(found)
        return tuple(sorted(unique, key=lambda nodes: (len(nodes), -width(topology, nodes), alpha_s(topology, nodes))))

    def _routes(self, source: str, target: str, *, passes_devices: bool) -> list[Nodes]:
        """Return the shortest routes for each kind of first link; with ``passes_devices``, for all kinds together."""
        if (source, passes_devices) not in self._searches:
            topology = self._topology
            kinds: Iterable[Sequence[str]] = [topology.neighbours(source)]
            if not passes_devices:
                kinds = grouped((link.kind, link.target) for link in topology.links if link.source == source).values()
            searches = [_searched(topology, source, firsts, passes_devices=passes_devices) for firsts in kinds]
            self._searches[source, passes_devices] = searches
        return [route for before in self._searches[source, passes_devices] for route in _back(before, source, target)]


@dataclass(frozen=True)
class RouteChoice:
    """The two choices for a plan's traffic. All loads grow in proportion to the size, so one object serves all sizes.

    Attributes:
        alone: The shortest route of every pair.
        shared: All routes of every pair.
        alone_s: Seconds for which the busiest link is busy with ``alone``.
        shared_s: Seconds for which the busiest link is busy with ``shared``.
        longer_s: The latency that longer routes add.

    """

    alone: Mapping[Ends, tuple[Route, ...]]
    shared: Mapping[Ends, tuple[Route, ...]]
    alone_s: float
    shared_s: float
    longer_s: float

    def shares_at(self, scale: float) -> bool:
        """Tell whether sharing saves more than the longer routes cost if all traffic is ``scale`` times as much."""
        return self.shared_s * scale + self.longer_s < self.alone_s * scale * _WORTH


def find_routes(
    topology: Topology,
    traffic: Mapping[Ends, float],
    *,
    messages: Mapping[Ends, int] | None = None,
    known: Alternatives | None = None,
) -> RouteChoice:
    """Return the routes of every pair of devices that exchanges values.

    Args:
        topology: the machine.
        traffic: bytes of each (source, target).
        messages: the number of copies of each pair; 1 by default.
        known: the alternatives of this machine, which keep the routes that are found.

    """
    known = Alternatives(topology) if known is None else known
    options = {pair: known[pair] for pair in traffic}
    alone: dict[Ends, tuple[Route, ...]] = {
        pair: (Route(found[0], 1.0, alpha_s(topology, found[0])),) for pair, found in options.items()
    }
    before = busiest_s(topology, traffic, alone)
    # No sharing can beat a link that all routes of its traffic cross. The search for shares is the costly part.
    if _unavoidable_s(topology, traffic, options) >= before * _WORTH:
        return RouteChoice(alone, alone, before, before, 0.0)
    shared = _balanced(topology, traffic, options)
    times = messages or {}
    # A copy is done when its last part is, so it pays the latency of its longest route, once for each message.
    longer = max(
        (max(route.alpha_s for route in shared[pair]) - alone[pair][0].alpha_s) * times.get(pair, 1) for pair in traffic
    )
    return RouteChoice(alone, shared, before, busiest_s(topology, traffic, shared), longer)


def busiest_s(topology: Topology, traffic: Mapping[Ends, float], routes: Mapping[Ends, Sequence[Route]]) -> float:
    """Return the seconds for which the busiest link is busy: its bytes over its bandwidth."""
    parts = ((link, traffic[pair] * route.share) for pair in traffic for route in routes[pair] for link in route.links)
    return _busiest_s(topology, parts)


def _unavoidable_s(topology: Topology, traffic: Mapping[Ends, float], options: Mapping[Ends, Sequence[Nodes]]) -> float:
    """Return a lower bound on the busiest link's busy seconds: the load of links that no route of a pair avoids.

    On most machines this is the link between two sockets. If the shortest routes reach the bound, nothing has to be
    balanced.
    """
    parts = (
        (link, traffic[pair])
        for pair, found in options.items()
        for link in set.intersection(*(set(itertools.pairwise(nodes)) for nodes in found))
    )
    return _busiest_s(topology, parts)


def _busiest_s(topology: Topology, parts: Iterable[tuple[Ends, float]]) -> float:
    load: dict[Ends, float] = {}
    for link, nbytes in parts:
        load[link] = load.get(link, 0.0) + nbytes
    return max((nbytes / topology.bytes_per_s[link] for link, nbytes in load.items()), default=0.0)


def alpha_s(topology: Topology, nodes: Sequence[str]) -> float:
    """Return the latency of a route: the sum of its links'."""
    return sum(topology.alphas[link] for link in itertools.pairwise(nodes))


def width(topology: Topology, nodes: Sequence[str]) -> float:
    """Return the bytes per second of a route: those of its narrowest link."""
    return min(topology.bytes_per_s[link] for link in itertools.pairwise(nodes))


def _searched(topology: Topology, source: str, firsts: Iterable[str], *, passes_devices: bool) -> _Before:
    """Return the nodes before each one on all shortest routes that begin with one of ``firsts``, breadth first.

    Devices are reached, but only passed if ``passes_devices``.
    """
    before: _Before = {name: [source] for name in firsts}
    depth = dict.fromkeys(before, 1) | {source: 0}
    layer = sorted(before)
    while layer:
        fresh: dict[str, None] = {}
        for name in layer:
            if topology.kinds[name] == "device" and not passes_devices:
                continue
            for other in topology.neighbours(name):
                # ``>``, not ``not in``: a node of the next layer keeps all its predecessors, one for each shortest
                # route.
                if depth.get(other, math.inf) > depth[name]:
                    depth[other] = depth[name] + 1
                    before.setdefault(other, []).append(name)
                    fresh[other] = None
        layer = list(fresh)
    return before


def _back(before: _Before, source: str, target: str) -> list[Nodes]:
    """Return the routes of a search to ``target``, which may be none."""
    routes: list[Nodes] = [(target,)] if target in before else []
    # Walk back over the predecessors; cut at every layer, because their product grows exponentially with the depth.
    while routes and routes[0][0] != source:
        routes = [(name, *rest) for rest in routes for name in before[rest[0]]][:_MOST]
    return routes


def _balanced(
    topology: Topology, traffic: Mapping[Ends, float], options: Mapping[Ends, Sequence[Nodes]]
) -> dict[Ends, tuple[Route, ...]]:
    """Share every pair's traffic among its routes so that the load of the busiest link is nearly minimal.

    Multiplicative weights (Arora, Hazan, Kale 2012): in every round, routes over busy links lose share. The result is
    the best of the shares and of their running means.
    """
    flat = [(pair, nodes) for pair, found in options.items() for nodes in found]
    used = dict.fromkeys(link for _, nodes in flat for link in itertools.pairwise(nodes))
    rows = {link: row for row, link in enumerate(used)}
    load = np.zeros((len(rows), len(flat)))
    for column, (pair, nodes) in enumerate(flat):
        for link in itertools.pairwise(nodes):
            load[rows[link], column] += traffic[pair] / topology.bytes_per_s[link]
    pair_of = np.repeat(np.arange(len(options)), [len(found) for found in options.values()])
    # Routes of one pair stand together, so a segment begins where the pair changes; ``reduceat`` sums by segment.
    firsts = np.flatnonzero(np.diff(pair_of, prepend=-1))
    logs, total = np.zeros(len(flat)), np.zeros(len(flat))
    busy, pressure = np.zeros(len(rows)), np.zeros(len(rows))
    best, lowest = total, math.inf
    for number in range(1, _ROUNDS + 1):
        # The shares of a pair's routes are proportional to the exponentials of their logs, which stay above −2·√400.
        weights = np.exp(logs)
        share = weights / np.add.reduceat(weights, firsts)[pair_of]
        seconds = load @ share
        highest = float(seconds.max())
        total, busy = total + share, busy + seconds
        # Loads are linear in the shares: the mean of the loads is the load of the mean shares, which need no
        # evaluation.
        mean = float(busy.max()) / number
        if min(highest, mean) < lowest:
            best, lowest = (share, highest) if highest <= mean else (total / number, mean)
        # The price of a link grows exponentially with its load so far. A route loses in proportion to the prices of its
        # links, relative to the dearest route of its pair, and less in later rounds.
        pressure += seconds / highest
        # Each round adds 1 at most to a pressure, so the exponent is √400 = 20 at most, and nothing overflows.
        cost = np.exp(pressure / math.sqrt(number)) @ load
        logs -= cost / np.maximum.reduceat(cost, firsts)[pair_of] / math.sqrt(number)
    found: dict[Ends, list[Route]] = {pair: [] for pair in options}
    for (pair, nodes), part in zip(flat, best, strict=True):
        found[pair].append(Route(nodes, float(part), alpha_s(topology, nodes)))
    return {pair: tuple(routes) for pair, routes in found.items()}


"""The seconds that a call costs beside its copies: launching kernels and synchronising devices.

The value is a prior, below what others have measured: NCCL and RCCL take 10 µs for a few bytes between two A100
(NVIDIA/nccl issue 583), 12.5 between eight H20 (deepseek-ai/DeepEP issue 303), 15 between eight MI300X
(microsoft/mscclpp pull request 646), 17 to 25 between sixteen MI250X dies (ROCm/rccl pull request 929). A part of these
times is the latency of hops.
"""


def is_as_good(seconds: float, least: float) -> bool:
    """Tell whether a time is within 1 % of the least, both without the launch, which would hide differences.

    >>> is_as_good(LAUNCH_S + 1.009e-6, LAUNCH_S + 1e-6), is_as_good(LAUNCH_S + 1.02e-6, LAUNCH_S + 1e-6)
    (True, False)
    """
    return seconds <= least or seconds - LAUNCH_S <= _AS_GOOD * (least - LAUNCH_S)
