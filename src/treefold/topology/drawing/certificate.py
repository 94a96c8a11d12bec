"""A second check of a packing and its certificate, by code that made neither: whole numbers, Dijkstra and Prim."""

from __future__ import annotations

import heapq
from collections import defaultdict
from fractions import Fraction
from itertools import pairwise

from treefold.topology.graph import Topology
from treefold.topology.planning.tree_packing import TreePacking

_Prices = dict[tuple[str, str], int]


def recomputed_bound(packing: TreePacking, topology: Topology) -> Fraction | None:
    """Return Σ c·l / (the cheapest tree, up and down, at prices l) in bytes per second: what no plan exceeds.

    None where there is nothing to recompute: one device, or links that differ in their directions, whose bound is that
    of trees up and down chosen apart.
    """
    certificate = packing.certificate
    if certificate is None or certificate.is_directed:
        return None
    machine = topology.restricted(packing.devices)
    prices = {(source, target): price for source, target, price in certificate.prices}
    # In a second all links together earn at most Σ c·l. Every byte that is reduced and broadcast pays for some tree, up
    # and down, at least what the cheapest one costs. So no more bytes than the quotient get through.
    earned = sum((machine.capacity(*ends) * price for ends, price in prices.items()), Fraction(0))
    cost = {device: _cheapest_routes(machine, prices, device) for device in machine.devices}
    tree = _cheapest_tree(machine.devices, cost)
    return earned / tree if tree else None


def _cheapest_routes(machine: Topology, prices: _Prices, source: str) -> dict[str, int]:
    """Return the price of the cheapest route to every other device that goes through none."""
    best, todo = {source: 0}, [(0, source)]
    while todo:
        cost, name = heapq.heappop(todo)
        if cost > best[name] or (name != source and machine.kinds[name] == "device"):
            continue
        for other in machine.neighbours(name):
            after = cost + prices.get((name, other), 0)
            if other not in best or after < best[other]:
                best[other] = after
                heapq.heappush(todo, (after, other))
    return best


def _cheapest_tree(devices: tuple[str, ...], cost: dict[str, dict[str, int]]) -> int:
    inside, total = {devices[0]}, 0
    while len(inside) < len(devices):
        outside = [device for device in devices if device not in inside]
        edges = ((a, b) for a in inside for b in outside if b in cost[a] and a in cost[b])
        price, nearest = min((cost[a][b] + cost[b][a], b) for a, b in edges)
        total += price
        inside.add(nearest)
    return total


def most_loaded(packing: TreePacking, topology: Topology) -> Fraction:
    """Return the largest share of its capacity that a link carries when the trees run at what the packing reaches."""
    load: dict[tuple[str, str], Fraction] = defaultdict(Fraction)
    for tree in packing.trees:
        for route in (*tree.up, *tree.down):
            for ends in pairwise(route):
                load[ends] += tree.share
    rate = packing.algbw or Fraction(0)
    return max((rate * part / topology.capacity(*ends) for ends, part in load.items()), default=Fraction(0))
