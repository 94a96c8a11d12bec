"""Where each tree is rooted: throughput does not mind, latency does."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping
from fractions import Fraction

from treefold.planners.tree_packing.network import Route
from treefold.planners.tree_packing.packing import Tree
from treefold.topology import Topology

_PER_EDGE_S = 1e-9  # where latencies are not known, fewer edges are better

Ways = Mapping[tuple[str, str], Route]


class Rooter:
    """Roots trees at a device of least latency to its farthest one, and spreads roots over the devices."""

    def __init__(self, topology: Topology) -> None:
        """Start with no device being a root."""
        self._alphas = topology.alphas
        self._used: Counter[str] = Counter()
        self._order = {device: number for number, device in enumerate(topology.devices)}

    def rooted(self, share: Fraction, ways: Ways, root: str | None = None) -> Tree:
        """Return the tree whose edges these routes are, each in both directions, at the best root or at ``root``."""
        near: dict[str, list[tuple[str, float]]] = {}
        for (source, target), route in ways.items():
            near.setdefault(source, []).append((target, self._latency(route)))
        root = root or min(self._centres(near), key=lambda device: (self._used[device], self._order[device]))
        self._used[root] += 1
        walk = _walk(near, root)
        down = tuple(ways[parent, child] for child, (parent, _) in walk.items() if child != root)
        up = tuple(ways[child, parent] for child, (parent, _) in reversed(walk.items()) if child != root)
        return Tree(share, root, up, down)

    def _latency(self, route: Route) -> float:
        return _PER_EDGE_S + sum(self._alphas[ends] for ends in itertools.pairwise(route))

    def _centres(self, near: Mapping[str, Iterable[tuple[str, float]]]) -> list[str]:
        """Return the devices of least eccentricity: in a tree, the farthest device is an end of a longest path."""
        start = _farthest(_walk(near, next(iter(near))))
        from_start = _walk(near, start)
        from_end = _walk(near, _farthest(from_start))
        eccentricity = {device: max(from_start[device][1], from_end[device][1]) for device in near}
        least = min(eccentricity.values())
        return [device for device, value in eccentricity.items() if value <= least * (1 + 1e-9)]


def _walk(near: Mapping[str, Iterable[tuple[str, float]]], root: str) -> dict[str, tuple[str, float]]:
    """Return each device's parent and distance, devices in breadth-first order."""
    found = {root: (root, 0.0)}
    todo = [root]
    for device in todo:
        for other, latency in near[device]:
            if other not in found:
                found[other] = (device, found[device][1] + latency)
                todo.append(other)
    return found


def _farthest(walk: Mapping[str, tuple[str, float]]) -> str:
    return max(walk, key=lambda device: walk[device][1])
