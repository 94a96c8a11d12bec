"""Column generation: trees are the columns of a linear program, and cheapest spanning trees solve its pricing problem.

The program maximises Σ x_T under one constraint for every row r:

    Σ_T load_r(T)·x_T ≤ c_r

The dual solution gives every row a price. If the cheapest tree at these prices costs at least 1, the program is solved.
Otherwise that tree is the next column (Gilmore and Gomory 1961). By weak duality, any prices l ≥ 0 bound X = Σ_T x_T
from above.

    X·(cost of the cheapest tree at l) ≤ Σ_T x_T·(cost of T) = Σ_r l_r·Σ_T load_r(T)·x_T ≤ Σ_r c_r·l_r
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from types import ModuleType

import numpy as np

from treefold.errors import MissingExtraError, TopologyError
from treefold.errors.words import counted, some
from treefold.keyed import grouped
from treefold.topology.planning.tree_packing.network import Array, Indices, Network, Route, Routes

# The part of the total price that prefers, among cheapest trees, those of few and wide links.
_TIE_BREAK = 1e-10
# The weight of the best bound's prices (dual stabilisation). Without it, twice as many columns are needed.
_TOWARDS_BEST = 0.5
# A smaller weight counts as 0: halving alone would never reach the dual prices themselves.
_NEARLY_NONE = 0.1
# How far below 1 the cost of a new column must be. With 0, rounding would add columns again and again, for ever.
_VIOLATED = 1e-9
# Up to this many devices the linear program alone takes no longer.
_SMALL = 16
_ROUNDS_PER_DEVICE, _MOST_ROUNDS = 6, 400
# The ε of Garg and Könemann: smaller values come closer to the optimum, and need more rounds. It need not come close,
# because the linear program weighs the trees again.
_STEEPNESS = 0.3
Pairs = list[tuple[int, int]]  # (parent, child), parents first


@dataclass(frozen=True, eq=False)
class Column:
    """A tree: values travel along ``up`` to ``root``, and results along ``down`` from it.

    Attributes:
        up: Edges as (sender, receiver), leaves first.
        down: Edges as (sender, receiver), the root first.
        route_of: The route of each edge.
        loads: How often the tree crosses each row.
        is_mirrored: True if ``down`` is ``up`` backwards, so that any device can be the root.

    """

    root: int
    up: tuple[tuple[int, int], ...]
    down: tuple[tuple[int, int], ...]
    route_of: dict[tuple[int, int], Route]
    loads: Array
    is_mirrored: bool = True


@dataclass(frozen=True)
class Priced:
    """The cheapest tree at some prices. ``cost`` is exact where prices are whole numbers."""

    cost: float
    column: Callable[[], Column]


Oracle = Callable[[Array], list[Priced]]  # prices → trees, the cheapest first


@dataclass(frozen=True)
class InitialColumns:
    """Columns to begin with, and prices that prove a bound close to the optimum."""

    columns: tuple[Column, ...]
    prices: Array


@dataclass(frozen=True)
class Solution:
    """Columns with their rates x in units of the widest row, and the prices of the best bound."""

    columns: tuple[Column, ...]
    rates: Array
    prices: Array


def mirrored_trees(network: Network) -> Oracle:
    """Return the pricing of trees with results back along the edges of the values: minimum spanning trees."""

    def price(prices: Array) -> list[Priced]:
        # An edge between two devices is the cheapest route between them, so one tree may cross a row more than once.
        routes = network.routes(prices)
        total, pairs = cheapest_tree(routes.cost_there_and_back)
        return [Priced(total, partial(mirrored, network, routes, pairs))]

    return price


def shallow_trees(network: Network, max_depth: int) -> Oracle:
    """Return the pricing of trees of bounded depth: one good tree per root, which need not be the cheapest."""

    def price(prices: Array) -> list[Priced]:
        routes = network.routes(prices)
        cost = routes.cost_there_and_back
        # The problem is NP-hard, and no root is known to be the best: each gives a candidate, and the program weighs
        # them.
        found = [_shallow_tree(cost, root, max_depth) for root in range(len(cost))]
        found = sorted((item for item in found if np.isfinite(item[0])), key=lambda item: item[0])
        if not found:
            # No root reaches all devices in so few edges, whatever the prices: the program has no column at all.
            raise TopologyError(
                f"No tree that is {counted(max_depth, 'edge')} deep joins {some(network.devices)}. Allow a larger "
                "max_depth, or None for any."
            )
        return [Priced(total, partial(mirrored, network, routes, pairs)) for total, pairs in found]

    return price


def _shallow_tree(cost: Array, root: int, max_depth: int) -> tuple[float, Pairs]:
    """Return the cost and edges of a tree of bounded depth; the cost is infinite if none was found."""
    total, pairs = cheapest_tree(cost, root, max_depth)
    if np.isfinite(total):
        return total, pairs
    # The cheap edges led too deep. Paths of fewest edges are the shallowest tree that there is.
    pairs, depth = cheapest_paths(np.where(np.isfinite(cost), 1.0, np.inf), root), {root: 0}
    for parent, child in pairs:
        depth[child] = depth[parent] + 1
    is_tree = len(depth) == len(cost) and max(depth.values()) <= max_depth
    return float(sum(cost[pair] for pair in pairs)) if is_tree else np.inf, pairs


def directed_trees(network: Network) -> Oracle:
    """Return the pricing of trees with separate edges up and down: two arborescences per root."""

    def price(prices: Array) -> list[Priced]:
        routes = network.routes(prices)
        found = []
        for root in range(len(network.devices)):
            # Values travel towards the root: reversed, these edges are an arborescence that leads away from it. The two
            # directions share no constraint but the root, so the cheapest pair is two separate minima.
            ups, up = cheapest_arborescence(routes.cost.T, root)
            downs, down = cheapest_arborescence(routes.cost, root)
            found.append((ups + downs, root, up, down))
        # Of equal costs the lowest root is first, so that every process packs the same trees; lists are not compared.
        found.sort(key=lambda item: item[:2])
        # One column per root and round takes a quarter of the rounds that one column takes.
        return [Priced(total, partial(_directed, network, routes, root, up, down)) for total, root, up, down in found]

    return price


def pack_trees(
    network: Network, oracle: Oracle, start: InitialColumns, *, groups: Indices, tolerance: float, max_rounds: int
) -> Solution:
    """Generate columns until the bound is met within ``tolerance``, or ``max_rounds`` programs are solved.

    ``groups``: the number of each row's group. Rows of one group are equivalent by symmetry, so one constraint on their
    sum replaces theirs.

    Prices of the dual alone jump between corners from round to round. The pricing therefore uses a mix with the prices
    of the best bound so far (in-out stabilisation). The weight of these shrinks while the mix finds no column that
    improves the program.
    """
    # Rows of one group are summed, capacities here and loads below. This loses nothing: by convexity, the mean of a
    # solution's images under the symmetry is as good, and it loads all rows of a group alike.
    width: Array = np.bincount(groups, network.width).astype(float)
    # All capacity together costs 1 at these prices, as at the others: the tie-break is then a fixed part of the total.
    first = 1 / (network.width * len(network.width))
    best = start.prices / (network.width @ start.prices)
    cheapest = oracle(best)[0]
    columns = [*start.columns, cheapest.column()]
    # The total price is 1, so this is Σ c·l / cost. For shallow trees it is only a guess at which to stop, because
    # the cheapest is not known. The published bound comes from ``certify``, which prices all trees exactly.
    bound = 1 / cheapest.cost
    for remaining in reversed(range(max_rounds)):
        loads = np.array([np.bincount(groups, column.loads, len(width)) for column in columns]).T
        rates, dual = _solve(loads, width)
        value = float(rates.sum())
        # Scale the prices so that all capacity together costs 1. A known tree then costs at least 1 / value.
        dual = dual[groups] / (width @ dual)
        fresh, towards = list[Column](), _TOWARDS_BEST
        while not fresh and bound - value > tolerance * value:
            mixed = towards * best + (1 - towards) * dual
            # The tie-break only chooses among cheapest trees. It is left out of ``best``, of which the certificate is
            # made.
            found = oracle(mixed + _TIE_BREAK * first)
            if 1 / found[0].cost < bound:
                bound, best = 1 / found[0].cost, mixed
            # What improves the program is decided at its own dual: a tree that is cheap at the mixed prices need not.
            # After each miss the mix is nearer to that dual; where nothing else is mixed in, a miss proves that the
            # program is solved.
            fresh = [c for c in (priced.column() for priced in found) if (c.loads @ dual) * value < 1 - _VIOLATED]
            if towards == 0:
                break
            towards = towards / 2 if towards > _NEARLY_NONE else 0.0
        # Columns that the last round found are dropped: no program would give them a rate.
        if not fresh or not remaining:
            break
        columns += fresh
    return Solution(tuple(columns), rates, best)


def _solve(loads: Array, width: Array) -> tuple[Array, Array]:
    """Return the rates of the columns, and the prices of the constraints."""
    # By the dual simplex, which ends in a corner: at most as many trees as rows have a rate, and full rows determine
    # the rates exactly (``exact._corner``). An interior point would spread the rates over all optimal trees.
    found = load_scipy_optimize().linprog(-np.ones(loads.shape[1]), A_ub=loads, b_ub=width, method="highs-ds")
    # SciPy minimises, so its marginals are the prices with a minus sign; within the solver's tolerance either may be a
    # little below 0, and negative prices would break the shortest routes.
    return np.maximum(found.x, 0.0), np.maximum(-found.ineqlin.marginals, 0.0)


def load_scipy_optimize() -> ModuleType:
    """Return ``scipy.optimize``, imported lazily: callers that only reduce do not load SciPy.

    Raises:
        MissingExtraError: SciPy is not installed.

    """
    try:
        return importlib.import_module("scipy.optimize")
    except ImportError:
        raise MissingExtraError(
            'Planning for a topology needs SciPy, which is not installed. Run pip install "treefold[planner]".'
        ) from None


def mirrored_column(network: Network, edges: Sequence[tuple[int, int, Route, Route]]) -> Column:
    """Return the tree of these (parent, child, route down, route up), parents first; its root is the first parent."""
    route_of: dict[tuple[int, int], Route] = {}
    loads = np.zeros(len(network.capacities))
    for parent, child, down, up in edges:
        route_of[parent, child], route_of[child, parent] = down, up
        loads += network.crossings(down, up)
    # Parents come first, so reversed the leaves do: every device then receives all of its children before it sends.
    pairs = [(parent, child) for parent, child, *_ in edges]
    return Column(pairs[0][0], tuple((child, parent) for parent, child in pairs[::-1]), tuple(pairs), route_of, loads)


def mirrored(network: Network, routes: Routes, pairs: Pairs) -> Column:
    """Return the tree of these (parent, child) pairs along the cheapest routes."""
    return mirrored_column(network, [(a, b, *routes.there_and_back(a, b)) for a, b in pairs])


def _directed(network: Network, routes: Routes, root: int, up: Pairs, down: Pairs) -> Column:
    """Return the tree with values against the edges ``up`` and results along the edges ``down``."""
    climbs = tuple((child, parent) for parent, child in up[::-1])
    route_of = {pair: routes.route(*pair) for pair in (*climbs, *down)}
    loads = np.zeros(len(network.capacities))
    for pair in (*climbs, *down):
        for row in network.rows_on(route_of[pair]):
            loads[row] += 1
    # Where both halves happen to be one tree, any device can be its root, and ``rooted_tree`` chooses a central one.
    is_mirrored = {(b, a) for a, b in climbs} == set(down)
    return Column(root, climbs, tuple(down), route_of, loads, is_mirrored)


def initial_columns(network: Network, oracle: Oracle) -> InitialColumns:
    """Return the columns and prices to begin with."""
    shallow = _cheapest_path_trees(network)
    if len(network.devices) <= _SMALL:
        return InitialColumns(shallow, 1 / network.width)
    weighted = _multiplicative_weights(network, oracle)
    return InitialColumns((*shallow, *weighted.columns), weighted.prices)


def _cheapest_path_trees(network: Network) -> tuple[Column, ...]:
    """Return the tree of cheapest paths from every device.

    The optimum on meshes and behind switches needs no trees but these, which are shallow.
    """
    routes = network.routes(1 / network.width)
    cost = routes.cost_there_and_back
    # A root from which some device cannot be reached both ways has no tree.
    found = [cheapest_paths(cost, root) for root in range(len(cost))]
    return tuple(mirrored(network, routes, pairs) for pairs in found if len(pairs) == len(cost) - 1)


def _multiplicative_weights(network: Network, oracle: Oracle) -> InitialColumns:
    """Return trees found by multiplicative weights, and the prices of the best bound (Garg and Könemann 2007).

    Each tree is the cheapest at prices that grow exponentially with the load of the trees before it. A few rounds find
    the trees of which an optimum is made. The linear program then weighs them.
    """
    load = np.zeros(len(network.width))
    columns: dict[tuple[float, ...], Column] = {}
    best, bound = 1 / network.width, np.inf
    for _ in range(min(_ROUNDS_PER_DEVICE * len(network.devices), _MOST_ROUNDS)):
        fullness = load / network.width
        # Less the fullest, so that the exponential does not overflow: only the ratios of prices count.
        prices = np.exp((fullness - fullness.max()) * _STEEPNESS) / network.width
        cheapest = oracle(prices)[0]
        # Every round's prices prove a bound (weak duality, as in ``columns``); the best of them start the
        # stabilisation.
        if network.width @ prices / cheapest.cost < bound:
            best, bound = prices, network.width @ prices / cheapest.cost
        column = cheapest.column()
        # Trees with equal loads are interchangeable in the program, so one of them is enough.
        columns.setdefault(tuple(column.loads), column)
        # The tree carries as much as fills its narrowest row, and loads its others in proportion.
        load += column.loads / (column.loads / network.width).max()
    return InitialColumns(tuple(columns.values()), best)


def cheapest_tree(cost: Array, root: int = 0, max_depth: int | None = None) -> tuple[float, Pairs]:
    """Return the cost and edges of the minimum spanning tree of a symmetric matrix (Prim, O(n²)).

    With ``max_depth``, every device is at most that many edges from ``root``. The tree is then good but not always the
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
        # All are infinite: the other devices are not connected, or only devices at the greatest depth lead there.
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
    """Return the cost and edges of the cheapest tree with edges that lead away from ``root``.

    ``cost[i, j]`` is that of the edge from i to j. Source: Chu and Liu 1965, Edmonds 1967. Costs O(n³): up to n
    contractions of O(n²) each.
    """
    children = grouped((parent, child) for child, parent in enumerate(_parents(cost, root)) if child != root)
    # A search from the root puts every parent before its children. It also shows whether all nodes are reached: an
    # edge of infinite cost is chosen if there is no other.
    pairs, todo = Pairs(), [root]
    while todo:
        parent = todo.pop(0)
        for child in children.get(parent, []):
            pairs.append((parent, child))
            todo.append(child)
    return float(sum(cost[pair] for pair in pairs)) if len(pairs) == len(cost) - 1 else float("inf"), pairs


def _parents(cost: Array, root: int) -> list[int]:
    """Return each node's parent in the cheapest arborescence.

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
    # The edge by which the solution enters the cycle replaces one edge of the cycle. All other members keep theirs.
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
