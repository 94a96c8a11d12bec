"""Rings: every device passes on to the next one; what others do with large values, to compare with."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from fractions import Fraction

from treefold.planners.tree_packing import Tree
from treefold.topology import Topology

_MOST_STEPS = 200_000  # of the search for the widest ring; devices of known machines need some thousands


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
        around = [order[(root + 1 + place) % count] for place in range(count)]
        up = tuple(itertools.pairwise(around))
        down = tuple(itertools.pairwise((order[root], *around[:-1])))
        trees.append(Tree(Fraction(1, count), order[root], up, down))
    return tuple(trees)


def two_rings(order: Sequence[str]) -> tuple[Tree, ...]:
    """Return the trees of two rings, one in each direction, with half the values each: links carry both at once."""
    both = ring_trees(order) + ring_trees(order[::-1])
    return tuple(Tree(tree.share / 2, tree.root, tree.up, tree.down) for tree in both) if len(order) > 1 else both[:1]


def widest_ring(topology: Topology) -> tuple[str, ...]:
    """Return an order of all devices in which the narrowest of the links from each to the next is widest.

    Direct links only; the order of the topology where these make no ring. The widest there is for up to about twelve
    devices; beyond, the search stops at the best one found so far.
    """
    devices = topology.devices
    widths = sorted({topology.capacity(a, b) for a in devices for b in devices if a != b} - {Fraction(0)}, reverse=True)
    for width in widths:
        joined = {a: [b for b in devices if a != b and topology.capacity(a, b) >= width] for a in devices}
        found = _cycle(joined, [devices[0]], iter(range(_MOST_STEPS)))
        if found:
            return found
    return devices


def _cycle(joined: dict[str, list[str]], path: list[str], steps: Iterator[int]) -> tuple[str, ...]:
    """Return a way through all that ends beside its beginning, or nothing; depth first."""
    if len(path) == len(joined):
        return tuple(path) if path[0] in joined[path[-1]] else ()
    for device in joined[path[-1]]:
        if device not in path and next(steps, None) is not None:
            found = _cycle(joined, [*path, device], steps)
            if found:
                return found
    return ()
