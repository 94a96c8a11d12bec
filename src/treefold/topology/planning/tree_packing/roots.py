"""The choice of each tree's root. It does not change the throughput of a tree, but its latency."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from fractions import Fraction

from treefold.topology.graph import Topology
from treefold.topology.planning.tree_packing.network import Route
from treefold.topology.planning.tree_packing.packing import Tree

_PER_EDGE_S = 1e-9  # makes fewer edges better where no latencies are known

Adjacent = Mapping[str, Sequence[tuple[str, float]]]  # by device: those at its edges, and their latencies


def rooted_tree(
    topology: Topology, share: Fraction, routes: Mapping[tuple[str, str], Route], num_trees_at: Mapping[str, int]
) -> Tree:
    """Return the tree of these routes, rooted at a device whose latency to the farthest device is least.

    ``routes``: both directions of every edge. Among several such devices, the root is the one with the fewest trees so
    far, by ``num_trees_at``, then the first of the topology.
    """
    alphas, adjacent = topology.alphas, dict[str, list[tuple[str, float]]]()
    for (source, target), route in routes.items():
        latency = _PER_EDGE_S + sum(alphas[ends] for ends in itertools.pairwise(route))
        adjacent.setdefault(source, []).append((target, latency))
    centres = _centres(adjacent)
    # Roots are spread, so that no device makes the final fold of every pack while the others wait for it.
    root = min((device for device in topology.devices if device in centres), key=lambda name: num_trees_at.get(name, 0))
    walk = _walk(adjacent, root)
    down = tuple(routes[parent, child] for child, (parent, _) in walk.items() if child != root)
    up = tuple(routes[child, parent] for child, (parent, _) in reversed(walk.items()) if child != root)
    return Tree(share, root, up, down)


def _centres(adjacent: Adjacent) -> set[str]:
    """Return the devices of least eccentricity, which is the latency to the device farthest away.

    In a tree, the device farthest from any device is an end of a longest path. The eccentricity of every device is then
    the latency to the farther of that path's two ends, so three walks replace one from each device. Where the two
    directions of a link differ in latency, this is an approximation, which can cost latency but no throughput.
    """
    start = _farthest(_walk(adjacent, next(iter(adjacent))))
    from_start = _walk(adjacent, start)
    from_end = _walk(adjacent, _farthest(from_start))
    eccentricity = {device: max(from_start[device][1], from_end[device][1]) for device in adjacent}
    least = min(eccentricity.values())
    # Sums of the same latencies in another order differ in their last digits, and mean the same.
    return {device for device, value in eccentricity.items() if value <= least * (1 + 1e-9)}


def _walk(adjacent: Adjacent, root: str) -> dict[str, tuple[str, float]]:
    """Return each device's parent and distance, devices in breadth-first order."""
    # In a tree there is one path to each device, so the first one found is the shortest whatever the latencies.
    found = {root: (root, 0.0)}
    todo = [root]
    # The list grows while it is walked: it is the queue of the search.
    for device in todo:
        for other, latency in adjacent[device]:
            if other not in found:
                found[other] = (device, found[device][1] + latency)
                todo.append(other)
    return found


def _farthest(walk: Mapping[str, tuple[str, float]]) -> str:
    return max(walk, key=lambda device: walk[device][1])
