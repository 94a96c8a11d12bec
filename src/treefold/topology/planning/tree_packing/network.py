"""A topology in numbers: rows of capacity, and the cheapest routes between devices at given prices.

A *row* is one constraint of the linear program: a link, or both directions of it if they are equally wide. A *span* is
a piece of a route: a link, or several in a row through carriers that join just two nodes, such as NICs.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from treefold.topology.graph import Topology

Array = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]
Route = tuple[str, ...]  # names of nodes, from the device that sends to the device that receives


class Network:
    """Devices, numbered as in the topology, and the rows and spans between them.

    Attributes:
        capacities: Exact bytes per second of every row.
        width: The capacities as floats, in units of the widest.

    """

    def __init__(self, topology: Topology) -> None:
        """Number the rows, join links into spans, and lay them out for array arithmetic."""
        self.topology = topology
        self.devices = topology.devices
        self.is_symmetric = topology.is_symmetric
        self.row_of: dict[tuple[str, str], int] = {}
        capacities: list[Fraction] = []
        for ends, capacity in topology.capacities.items():
            # A tree that folds up and sends down crosses both directions of its links equally. If these are equally
            # wide, one constraint and one price stand for both: half the rows, and the same optimum.
            if self.is_symmetric and ends[::-1] in self.row_of:
                self.row_of[ends] = self.row_of[ends[::-1]]
            else:
                self.row_of[ends] = len(capacities)
                capacities.append(capacity)
        self.capacities = tuple(capacities)
        self.widest = max(capacities, default=Fraction(1))
        # Divided as fractions, so that equally wide rows get equal floats; near 1, which is where the solver's
        # tolerances fit.
        self.width: Array = np.array([float(capacity / self.widest) for capacity in capacities])
        self._spans, carriers = _joined(topology)
        self._index = {name: number for number, name in enumerate((*self.devices, *carriers))}
        self._rows = _padded([self.rows_on(route) for route in self._spans], len(capacities))
        self._lay_out_ends(len(carriers))

    def routes(self, prices: Array) -> Routes:
        """Return the cheapest routes between all devices if each row costs its price.

        Costs O(t³ + n·t·(t + n)) for t carriers that join three nodes or more. Exact if the prices are whole numbers
        below 2³⁰.
        """
        # The pads: row number ``len(prices)`` costs nothing, and span number ``len(cost)``, below, costs infinity.
        cost = np.append(prices, 0.0)[self._rows].sum(axis=1)
        return Routes(self, np.append(cost, np.inf))

    def rows_on(self, route: Route) -> list[int]:
        """Return the row of every link of a route."""
        return [self.row_of[ends] for ends in itertools.pairwise(route)]

    def crossings(self, down: Route, up: Route) -> Array:
        """Return how often each row is crossed on these routes; a row that stands for both directions counts once."""
        # On symmetric machines the route up is the route down reversed, on the same rows.
        rows = self.rows_on(down) + ([] if self.is_symmetric else self.rows_on(up))
        return np.bincount(rows, minlength=len(self.capacities)).astype(float)

    def _lay_out_ends(self, num_carriers: int) -> None:
        count = len(self.devices)
        direct, between = list[list[int]](), list[list[int]]()
        leaving: list[list[int]] = [[] for _ in range(count)]
        arriving: list[list[int]] = [[] for _ in range(count)]
        for number, route in enumerate(self._spans):
            source, target = self._index[route[0]], self._index[route[-1]]
            if source < count and target < count:
                direct.append([source, target, number])
            elif source < count:
                leaving[source].append(number)
            elif target < count:
                arriving[target].append(number)
            else:
                between.append([source - count, target - count, number])
        self.num_carriers = num_carriers
        self.direct = np.array(direct, np.int64).reshape(-1, 3)
        self.between = np.array(between, np.int64).reshape(-1, 3)
        # The pad is a span that costs infinity.
        self.leaving, self.arriving = (_padded(spans, len(self._spans)) for spans in (leaving, arriving))
        ends = [(self._index[route[0]], self._index[route[-1]]) for route in self._spans]
        # The pad span leads to carrier 0: any valid index will do, because its cost of infinity keeps it from being
        # chosen.
        far = np.array([*ends, (count, count)], np.int64) - count
        self.carrier_after, self.carrier_before = far[self.leaving, 1], far[self.arriving, 0]

    def span(self, number: int) -> Route:
        """Return the nodes of a span."""
        return self._spans[number]


class Routes:
    """The cheapest routes at some prices: ``cost[i, j]`` from device i to j (infinite on the diagonal)."""

    def __init__(self, network: Network, span_cost: Array) -> None:
        """Compute the cheapest direct span of every pair, then the cheapest route through carriers."""
        self._network = network
        count = len(network.devices)
        self.cost: Array = np.full((count, count), np.inf)
        self._direct = _cheapest(self.cost, network.direct, span_cost)
        self._exit = np.full((count, count), -1)
        if network.num_carriers:
            inner, self._inner, self._hop = _through(network, span_cost)
            self._enter = np.zeros((count, network.num_carriers), np.int64)
            reach = np.full((count, network.num_carriers), np.inf)
            # The k-th span of all devices at once: a device has few spans, and a machine many devices.
            for k in range(network.leaving.shape[1]):
                other = span_cost[network.leaving[:, k], None] + inner[network.carrier_after[:, k]]
                # Strictly: of equally cheap routes the first stays, so that every process finds the same trees.
                better = other < reach
                reach[better], self._enter[better] = other[better], k
            for k in range(network.arriving.shape[1]):
                other = reach[:, network.carrier_before[:, k]] + span_cost[network.arriving[:, k]]
                better = other < self.cost
                self.cost[better], self._exit[better] = other[better], k
        # A device has no edge to itself, though a loop through a carrier may be cheap.
        np.fill_diagonal(self.cost, np.inf)

    @property
    def cost_there_and_back(self) -> Array:
        """The cost of a tree's edge in both directions; a row that stands for both directions counts once."""
        return self.cost if self._network.is_symmetric else self.cost + self.cost.T

    def there_and_back(self, source: int, target: int) -> tuple[Route, Route]:
        """Return the cheapest routes in both directions; on symmetric machines they use the same links."""
        there = self.route(source, target)
        return there, there[::-1] if self._network.is_symmetric else self.route(target, source)

    def route(self, source: int, target: int) -> Route:
        """Return the nodes on the cheapest route between two devices."""
        network, out = self._network, int(self._exit[source, target])
        # Routes through carriers are taken only where they are cheaper than the span that joins the two directly.
        if out < 0:
            return network.span(int(self._direct[source, target]))
        last = int(network.carrier_before[target, out])
        into = int(self._enter[source, last])
        at = int(network.carrier_after[source, into])
        spans = [int(network.leaving[source, into])]
        while at != last:
            # Ends, because each hop is the first of a cheapest route: prices are not negative, and ties never replaced
            # a hop.
            after = int(self._hop[at, last])
            spans.append(int(self._inner[at, after]))
            at = after
        spans.append(int(network.arriving[target, out]))
        names = [network.span(spans[0])[0]]
        for number in spans:
            names += network.span(number)[1:]
        return tuple(names)


def _cheapest(cost: Array, ends: Indices, span_cost: Array) -> Indices:
    """Write the cost of the cheapest span of each pair of ends into ``cost``, and return the spans' numbers."""
    chosen = np.full(cost.shape, -1)
    # Stable, so that among equally cheap parallel spans the choice does not depend on the sorting algorithm.
    order = np.argsort(-span_cost[ends[:, 2]], kind="stable")
    for source, target, number in ends[order]:  # the cheapest comes last and overwrites the others
        cost[source, target], chosen[source, target] = span_cost[number], number
    return chosen


def _through(network: Network, span_cost: Array) -> tuple[Array, Indices, Indices]:
    """Return costs between carriers, the spans to neighbours, and the next carrier of each route (Floyd, Warshall)."""
    size = network.num_carriers
    cost = np.full((size, size), np.inf)
    chosen = _cheapest(cost, network.between, span_cost)
    # A route may enter and leave the carriers at the same one.
    np.fill_diagonal(cost, 0.0)
    hop = np.tile(np.arange(size), (size, 1))
    for middle in range(size):
        other = cost[:, middle, None] + cost[middle]
        # Strictly: with ≤, the routes from ``middle`` itself would be replaced, and it would become its own next hop,
        # in an endless loop. All pairs at once is safe, because row and column ``middle`` do not change in their own
        # turn.
        better = other < cost
        if better.any():
            cost[better] = other[better]
            hop = np.where(better, hop[:, middle, None], hop)
    return cost, chosen, hop


def _joined(topology: Topology) -> tuple[list[Route], list[str]]:
    """Return the spans, and the carriers between them that join three nodes or more."""
    ends: dict[str, set[str]] = {node.name: set() for node in topology.nodes}
    for source, target in topology.capacities:
        ends[source].add(target)
        ends[target].add(source)
    # Dead ends first: a switch of three nodes, one of them a dead end, becomes a carrier that joins just two.
    for node in topology.nodes:
        _cut_off(node.name, topology.kinds, ends)
    spans: dict[tuple[str, str], list[Route]] = {}
    for pair in topology.capacities:
        if pair[0] in ends and pair[1] in ends:
            spans.setdefault(pair, []).append(pair)
    carriers = []
    for node in topology.nodes:
        if node.kind == "device" or node.name not in ends:
            continue
        if not _pass_over(node.name, ends, spans):
            carriers.append(node.name)
    return [route for some in spans.values() for route in some], carriers


def _cut_off(carrier: str, kinds: Mapping[str, str], ends: dict[str, set[str]]) -> None:
    """Remove a carrier that leads nowhere, such as the NIC of a device that is left out, and carriers behind it."""
    while carrier in ends and kinds[carrier] != "device" and len(ends[carrier]) < 2:  # noqa: PLR2004 - in and out
        for before in ends.pop(carrier):
            ends[before].discard(carrier)
            carrier = before


def _pass_over(carrier: str, ends: dict[str, set[str]], spans: dict[tuple[str, str], list[Route]]) -> bool:
    """Join the spans at a carrier that has at most one in and one out, so that the number of spans never grows."""
    around = sorted(ends[carrier])
    pairs = [pair for other in around for pair in ((other, carrier), (carrier, other))]
    if len(around) != 2 or any(len(spans.get(pair, [])) > 1 for pair in pairs):  # noqa: PLR2004 - two ends
        return False
    # Whatever enters such a carrier leaves at its other end, so no choice is lost. Its links keep their own rows, and
    # their capacities still count; only the search for routes has one node less.
    for start, stop in (around, around[::-1]):
        into, out = spans.pop((start, carrier), []), spans.pop((carrier, stop), [])
        if into and out:
            spans.setdefault((start, stop), []).append((*into[0], *out[0][1:]))
        ends[start].discard(carrier)
        ends[start].add(stop)
    del ends[carrier]
    return True


def _padded(rows: Sequence[Sequence[int]], pad: int) -> Indices:
    """Return the rows as one array, with shorter rows filled up by ``pad``."""
    most = max(map(len, rows), default=0)
    return np.array([[*row, *[pad] * (most - len(row))] for row in rows], np.int64).reshape(len(rows), most)
