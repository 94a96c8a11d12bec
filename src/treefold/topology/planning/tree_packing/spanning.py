"""Cheapest spanning trees on dense cost matrices: undirected, of bounded depth, and directed."""

from __future__ import annotations

import numpy as np

from treefold.topology.planning.tree_packing.network import Array

Pairs = list[tuple[int, int]]  # (parent, child), parents first


def cheapest_tree(cost: Array, root: int = 0, max_depth: int | None = None) -> tuple[float, Pairs]:
    """Return the cost and edges of the minimum spanning tree of a symmetric matrix (Prim, O(n²)).

    With ``max_depth``, no device is farther from ``root`` than so many edges. The tree is then good but not always the
    cheapest, because that problem is NP-hard. The cost is infinite if no tree is found.
    """
    # ``best``: the cheapest edge from the tree to each device outside. By the cut property, the cheapest of these
    # belongs to some minimum spanning tree. Without a heap, because a complete graph has n² edges to look at in any
    # case.
    best, parent = cost[root].copy(), np.full(len(cost), root)
    is_open = np.ones(len(cost), bool)
    is_open[root] = False
    depth = [0] * len(cost)
    best[root] = np.inf
    total, pairs = 0.0, Pairs()
    for _ in range(len(cost) - 1):
        child = int(best.argmin())
        # All are infinite: what is left is not connected, or only devices at the greatest depth lead there.
        total += float(best[child])
        if not np.isfinite(total):
            break
        pairs.append((int(parent[child]), child))
        depth[child] = depth[int(parent[child])] + 1
        # At infinity a device that is in the tree is never the nearest again.
        is_open[child], best[child] = False, np.inf
        # A device at the greatest depth takes no children. A greedy choice made earlier is never undone, hence not
        # optimal.
        if max_depth is None or depth[child] < max_depth:
            # ``is_open`` as well: the infinity of devices in the tree would look like room for improvement.
            better = is_open & (cost[child] < best)
            best[better], parent[better] = cost[child][better], child
    return total, pairs


def cheapest_paths(cost: Array, root: int) -> Pairs:
    """Return the edges of the tree of cheapest paths from ``root`` to all that it reaches (Dijkstra, O(n²))."""
    reach, parent = cost[root].copy(), np.full(len(cost), root)
    is_open = np.ones(len(cost), bool)
    is_open[root] = False
    pairs = Pairs()
    for _ in range(len(cost) - 1):
        # Costs are not negative, so the nearest open device can no longer come nearer (Dijkstra 1959).
        child = int(np.where(is_open, reach, np.inf).argmin())
        # With all at infinity, argmin gives 0, which may be the root.
        if not is_open[child] or not np.isfinite(reach[child]):
            break
        pairs.append((int(parent[child]), child))
        is_open[child] = False
        better = is_open & (reach[child] + cost[child] < reach)
        reach[better], parent[better] = (reach[child] + cost[child])[better], child
    return pairs


def cheapest_arborescence(cost: Array, root: int) -> tuple[float, Pairs]:
    """Return the cost and edges of the cheapest tree whose edges lead away from ``root``.

    ``cost[i, j]`` is that of the edge from i to j. Source: Chu and Liu 1965, Edmonds 1967.
    Costs O(n³): up to n contractions of O(n²) each.
    """
    parents = _parents(cost, root)
    children: dict[int, list[int]] = {}
    for child, parent in enumerate(parents):
        if child != root:
            children.setdefault(parent, []).append(child)
    # Numbered by node, parents are in no order; a search from the root puts each before its children, and finds out
    # whether all nodes are reached: edges of infinite cost may have been chosen where there are no others.
    pairs, todo = Pairs(), [root]
    while todo:
        parent = todo.pop(0)
        for child in children.get(parent, []):
            pairs.append((parent, child))
            todo.append(child)
    return float(sum(cost[pair] for pair in pairs)) if len(pairs) == len(cost) - 1 else float("inf"), pairs


def _parents(cost: Array, root: int) -> list[int]:
    """Return each node's parent.

    If the cheapest edges into each node form a cycle, contract it to one node, solve the smaller problem, and break the
    cycle where the solution enters it.
    """
    count = len(cost)
    work = cost.copy()
    # No edge enters the root, and none leads to itself. Whatever argmin then gives as the root's parent is not read.
    np.fill_diagonal(work, np.inf)
    work[:, root] = np.inf
    # Without a cycle this is optimal: every node but the root has one edge in, and each is the cheapest that it can
    # have.
    parents = [int(parent) for parent in work.argmin(axis=0)]
    cycle = _cycle(parents, root)
    if not cycle:
        return parents
    rest = [node for node in range(count) if node not in cycle]
    members, others = np.array(cycle), np.array(rest)
    inside = np.array([work[parents[node], node] for node in cycle])
    # Some optimal solution keeps all edges of the cycle but one (Edmonds), so the cycle can be one node. An edge that
    # enters it at a node replaces that node's edge in the cycle, so its cost counts less that. Infinity less infinity
    # would be NaN, which argmin takes for the least.
    entering = work[np.ix_(others, members)] - np.where(np.isfinite(inside), inside, 0.0)
    # The last node of the smaller problem is the cycle. An edge out of it costs the least from any of its members.
    small = np.full((len(rest) + 1, len(rest) + 1), np.inf)
    small[:-1, :-1] = work[np.ix_(others, others)]
    small[:-1, -1] = entering.min(axis=1)
    leaving = work[np.ix_(members, others)]
    small[-1, :-1] = leaving.min(axis=0)
    found = _parents(small, rest.index(root))
    entry, exits = entering.argmin(axis=1), leaving.argmin(axis=0)
    for number, node in enumerate(rest):
        if node != root:
            parents[node] = cycle[int(exits[number])] if found[number] == len(rest) else rest[found[number]]
    # Where the solution enters the cycle, this edge takes the place of the one within: all other members keep theirs.
    source = found[len(rest)]
    parents[cycle[int(entry[source])]] = rest[source]
    return parents


def _cycle(parents: list[int], root: int) -> list[int]:
    # By number of the walk: a node of this walk closes a cycle, one of an older walk leads where that one ended.
    seen = [-1] * len(parents)
    for start in range(len(parents)):
        node = start
        # Every node has one edge in: a walk against these edges ends at the root, at an older walk, or in a cycle.
        while node != root and seen[node] < 0:
            seen[node] = start
            node = parents[node]
        if node != root and seen[node] == start:
            cycle = [node]
            while parents[cycle[-1]] != node:
                cycle.append(parents[cycle[-1]])
            return cycle
    return []
