"""Trees for a given number of packs of equal size, chosen from a pool by an integer program."""

from __future__ import annotations

import math

import numpy as np

from treefold.topology.planning.tree_packing.columns import (
    Column,
    Oracle,
    Solution,
    load_scipy_optimize,
    mirrored_column,
)
from treefold.topology.planning.tree_packing.exact import Counts, reached
from treefold.topology.planning.tree_packing.network import Array, Network, Route

_LARGEST = 100_000  # entries of the pool's loads that the integer program is given
# The search is bounded by nodes, not by seconds: on a busy machine a time limit would give other, worse packings.
_MOST_NODES, _CLOSE = 400, 1e-6
# Each edge of a balanced tree costs a search of all routes, so there is a bound on edges, not on trees.
_MOST_EDGES, _POWER = 1024, 8
_SHAKEN, _SHAKES = 100, (0.2, 1.0)  # trees to add; noise on prices, in units of the highest price


def richer_pool(network: Network, oracle: Oracle, solution: Solution) -> tuple[Column, ...]:
    """Return trees to add to the pool: with whole numbers of packs, more trees than the optimum's are useful.

    They are the cheapest trees at prices with random noise, from a fixed seed.
    """
    random = np.random.default_rng(len(network.capacities))
    known_loads = {tuple(column.loads) for column in solution.columns}
    found = list[Column]()
    # Two points of departure: the optimal prices, under which the optimum's trees are all equally cheap, and prices
    # that favour wide rows. Both have 1 as their greatest, so one scale of noise fits both.
    known = (solution.prices / solution.prices.max(), network.width.min() / network.width)
    for number in range(min(_SHAKEN, _LARGEST // len(network.capacities))):
        # Noise is only added: the shortest routes need prices that are not negative.
        prices = known[number % 2] + _SHAKES[number // 2 % 2] * random.random(len(network.capacities))
        found.append(oracle(prices)[0].column())
    # Trees with equal loads are one and the same variable to the program. Copies would only give the search symmetric
    # branches, which it must all visit.
    unlike = {tuple(column.loads): column for column in found}
    return tuple(column for loads, column in unlike.items() if loads not in known_loads)


def balanced_trees(network: Network, packs: int) -> tuple[Column, ...]:
    """Return ``packs`` trees, or fewer on large machines, each grown edge by edge where the loads so far are least."""
    count = len(network.devices)
    loads, columns = np.zeros(len(network.capacities)), list[Column]()
    for pack in range(min(packs, max(1, _MOST_EDGES // count))):
        is_in = np.zeros(count, bool)
        # Each tree grows from another device: all from one would crowd the links near it.
        is_in[pack % count] = True
        edges = list[tuple[int, int, Route, Route]]()
        for _ in range(count - 1):
            # A high power makes the sum over a route nearly the load of its fullest row.
            # The load after one more crossing, not before it: else all empty rows, wide or narrow, would look alike.
            fullness = (loads + 1) / network.width
            routes = network.routes((fullness / fullness.max()) ** _POWER)
            open_cost = np.where(is_in[:, None] & ~is_in, routes.cost_there_and_back, np.inf)
            parent, child = (int(end) for end in np.unravel_index(open_cost.argmin(), open_cost.shape))
            edges.append((parent, child, *routes.there_and_back(parent, child)))
            # At once, not after the tree: the next edges of this tree must see that these rows are taken.
            loads += network.crossings(*edges[-1][2:])
            is_in[child] = True
        columns.append(mirrored_column(network, edges))
    return tuple(columns)


def equal_packs(network: Network, loads: Array, rates: Array, packs: int) -> Counts:
    """Return how many of ``packs`` equal packs each tree of the pool carries, for the largest bytes per second.

    The integer program minimises the largest load of a row relative to its width. Its search is bounded, so rounding by
    largest remainders is the alternative, and the better of the two is returned. One pack is the tree that reaches most
    alone; of equally good ones, that which carries most in the optimum.
    """
    if packs == 1:
        fullest = (loads / network.width[:, None]).max(axis=0)
        is_best = fullest <= fullest.min() * (1 + _CLOSE)
        return np.bincount([np.where(is_best, rates, -1.0).argmax()], minlength=len(rates))
    rounded = _largest_remainders(rates / rates.sum(), packs)
    solved = None
    if loads.size <= _LARGEST:
        solved = _solve(loads, network.width, np.full(loads.shape[1], packs), packs)
    # Rounded to the nearest, because the solver's whole numbers are whole to 1e-6 only: cut off, 2.9999999 would lose a
    # pack. The counts are compared by what they exactly reach, so the solver's own objective is never trusted.
    candidates = [rounded] if solved is None else [rounded, np.rint(solved).astype(np.int64)]
    return max(candidates, key=lambda counts: reached(network, loads, counts))


def _largest_remainders(shares: Array, packs: int) -> Counts:
    # Hamilton's method: no count is further than 1 from its exact value, and their sum is right.
    exact = shares * packs
    counts = np.floor(exact).astype(np.int64)
    missing = packs - int(counts.sum())
    # The most negative difference is the largest remainder; stable, so that equal machines get equal packings.
    counts[np.argsort(counts - exact, kind="stable")[:missing]] += 1
    return counts


def _solve(loads: Array, width: Array, most: Counts, packs: int) -> Array | None:
    """Minimise t where Σ load·count ≤ t·width and Σ count = packs."""
    optimize, num_trees = load_scipy_optimize(), loads.shape[1]
    # The variables are the counts and, last, t: load·count − width·t ≤ 0.
    capacity = optimize.LinearConstraint(np.column_stack([loads, -width]), -math.inf, 0.0)
    total = optimize.LinearConstraint(np.append(np.ones(num_trees), 0.0)[None, :], packs, packs)
    found = optimize.milp(
        np.append(np.zeros(num_trees), 1.0),
        constraints=[capacity, total],
        integrality=np.append(np.ones(num_trees), 0),
        bounds=optimize.Bounds(0, np.append(most, math.inf)),
        # A gap of 0 is not asked for: the nodes are few, and no plan is better by a millionth.
        options={"node_limit": _MOST_NODES, "mip_rel_gap": _CLOSE},
    )
    return None if found.x is None else found.x[:-1]
