"""Column generation: trees are the columns of a linear program, and cheapest spanning trees solve its pricing problem.

    maximise Σ x_T   where   Σ_T load_r(T)·x_T ≤ c_r   for every row r

The dual solution gives every row a price. If the cheapest tree at these prices costs at least 1, the program is solved;
else that tree is the next column (Gilmore and Gomory 1961). Any prices l ≥ 0 bound X from above, by weak duality:
X·(cost of the cheapest tree at l) ≤ Σ_T x_T·(cost of T) = Σ_r l_r·Σ_T load_r(T)·x_T ≤ Σ_r c_r·l_r.
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
from treefold.topology.planning.tree_packing.network import Array, Indices, Network, Route, Routes
from treefold.topology.planning.tree_packing.spanning import Pairs, cheapest_arborescence, cheapest_paths, cheapest_tree

_TIE_BREAK = 1e-10  # part of the total price that prefers, among cheapest trees, those of few and wide links
_TOWARDS_BEST = 0.5  # weight of the best bound's prices (dual stabilisation); without it, twice the columns are needed
# Below this weight the mix is tried no further: halving alone would never reach the dual prices themselves.
_NEARLY_NONE = 0.1
# Not 0: with a cost of 1 but for rounding, a column of the program would be added to it again, for ever.
_VIOLATED = 1e-9  # how far below 1 a new column's cost must be


@dataclass(frozen=True, eq=False)
class Column:
    """A tree: values travel along ``up`` to ``root``, results along ``down`` from it.

    Edges are (sender, receiver); ``route_of`` has the route of each. ``is_mirrored``: ``down`` is ``up`` backwards, so
    any device can be the root. ``loads``: how often the tree crosses each row.
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
    """Columns to begin with, and prices that bound well already."""

    columns: tuple[Column, ...]
    prices: Array


@dataclass(frozen=True)
class Solution:
    """Columns with their rates x in units of the widest row, and the prices of the best bound."""

    columns: tuple[Column, ...]
    rates: Array
    prices: Array


def mirrored_trees(network: Network) -> Oracle:
    """Return the pricing of trees whose results go back along the edges of the values: minimum spanning trees."""

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
    """Return the pricing of trees whose edges up and down are chosen separately: two arborescences per root."""

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

    Prices of the dual alone jump between corners from round to round. They are therefore mixed with the prices of the
    best bound so far (in-out stabilisation), and less so while the mix finds no column that improves the program.
    """
    # Rows of one group are summed, capacities here and loads below: by convexity, the mean of a solution's images under
    # the symmetry is a solution as good, and it loads all rows of a group alike.
    width: Array = np.bincount(groups, network.width).astype(float)
    # All capacity together costs 1 at these prices, as at the others: the tie-break is then a fixed part of the total.
    first = 1 / (network.width * len(network.width))
    best = start.prices / (network.width @ start.prices)
    cheapest = oracle(best)[0]
    columns = [*start.columns, cheapest.column()]
    # The total price is 1, so this is Σ c·l / cost. Of shallow trees, whose cheapest is not known, it is only a guess
    # at which to stop. The bound that is published comes from ``certify``, which prices all trees exactly.
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
    """Return the tree of (parent, child, route down, route up), parents first; its root is the first parent."""
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
    """Return the tree whose values go against the edges ``up``, and whose results go along the edges ``down``."""
    climbs = tuple((child, parent) for parent, child in up[::-1])
    route_of = {pair: routes.route(*pair) for pair in (*climbs, *down)}
    loads = np.zeros(len(network.capacities))
    for pair in (*climbs, *down):
        for row in network.rows_on(route_of[pair]):
            loads[row] += 1
    # Where both halves happen to be one tree, any device can be its root, and ``rooted_tree`` chooses a central one.
    is_mirrored = {(b, a) for a, b in climbs} == set(down)
    return Column(root, climbs, tuple(down), route_of, loads, is_mirrored)
