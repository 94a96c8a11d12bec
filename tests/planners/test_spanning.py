"""The trees that packings are made of, against every tree that there is."""

import itertools
import math
import random

import numpy as np
import packing_oracles
import pytest
from packing_oracles import all_depths

from treefold.topology.planning.tree_packing.columns import (
    _shallow_tree,
    cheapest_arborescence,
    cheapest_paths,
    cheapest_tree,
)


def costs_of(seed, count, *, is_symmetric=False, missing=0.2):
    """Return whole costs between nodes, infinite where there is no edge."""
    numbers = random.Random(seed)  # noqa: S311 - nothing is secret here
    cost = np.full((count, count), np.inf)
    for i, j in itertools.permutations(range(count), 2):
        cost[i, j] = np.inf if numbers.random() < missing else numbers.randint(1, 9)
    return np.minimum(cost, cost.T) if is_symmetric else cost


def cheapest(cost, root, max_depth=math.inf):
    """Return what the cheapest tree away from the root costs: all of them are tried."""
    return packing_oracles.cheapest_arborescence(range(len(cost)), root, lambda a, b: cost[a, b], max_depth)


def is_tree(pairs, root, count):
    """Tell whether edges lead from the root to every node once, parents first."""
    seen = {root}
    for parent, child in pairs:
        if parent not in seen or child in seen:
            return False
        seen.add(child)
    return len(seen) == count


class TestCheapestArborescence:
    @pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
    @pytest.mark.parametrize("missing", [0, 0.2, 0.5])
    def test_is_the_cheapest_of_all(self, count, missing):
        """Cycles within cycles are contracted and opened again, and nodes that nothing reaches are said so."""
        for seed in range(12):
            cost = costs_of(seed, count, missing=missing)
            total, pairs = cheapest_arborescence(cost, seed % count)
            assert total == cheapest(cost, seed % count)
            if math.isfinite(total):
                assert is_tree(pairs, seed % count, count)
                assert sum(cost[pair] for pair in pairs) == total


class TestCheapestTree:
    @pytest.mark.parametrize("count", [2, 3, 4, 5])
    @pytest.mark.parametrize("missing", [0, 0.2])
    def test_is_the_cheapest_of_all(self, count, missing):
        for seed in range(12):
            cost = costs_of(seed, count, is_symmetric=True, missing=missing)
            total, pairs = cheapest_tree(cost, seed % count)
            assert total == cheapest(cost, seed % count)
            assert not math.isfinite(total) or is_tree(pairs, seed % count, count)

    @pytest.mark.parametrize("max_depth", [1, 2, 3])
    def test_is_no_deeper_than_allowed(self, max_depth):
        for seed in range(30):
            cost = costs_of(seed, 5, is_symmetric=True)
            total, pairs = cheapest_tree(cost, 0, max_depth)
            assert total >= cheapest(cost, 0, max_depth)
            if math.isfinite(total):
                assert max(all_depths({child: parent for parent, child in pairs}, 0).values()) <= max_depth


class TestShallowTree:
    @pytest.mark.parametrize("max_depth", [1, 2, 3, 4])
    def test_is_found_wherever_there_is_one(self, max_depth):
        """Where cheap edges lead too deep, the fewest edges do; a tree may also be shallower than allowed."""
        for seed in range(30):
            cost = costs_of(seed, 5, is_symmetric=True, missing=0.4)
            total, pairs = _shallow_tree(cost, 0, max_depth)
            assert math.isfinite(total) == math.isfinite(cheapest(cost, 0, max_depth))
            if math.isfinite(total):
                assert is_tree(pairs, 0, 5)
                assert sum(cost[pair] for pair in pairs) == total
                assert max(all_depths({child: parent for parent, child in pairs}, 0).values()) <= max_depth


class TestCheapestPaths:
    @pytest.mark.parametrize("count", [1, 2, 5, 8])
    def test_are_the_cheapest(self, count):
        for seed in range(20):
            cost = costs_of(seed, count, missing=0.4)
            reach = np.full(count, np.inf)
            reach[0] = 0
            for _ in range(count):
                reach = np.minimum(reach, (reach[:, None] + cost).min(axis=0))
            found = {0: 0.0}
            for parent, child in cheapest_paths(cost, 0):
                found[child] = found[parent] + cost[parent, child]
            assert found == {node: far for node, far in enumerate(reach.tolist()) if math.isfinite(far)}

    def test_reach_on_as_far_as_edges_do(self):
        cost = np.full((4, 4), np.inf)
        cost[1, 3] = cost[3, 1] = 2
        assert cheapest_paths(cost, 1) == [(1, 3)]
        assert cheapest_paths(cost, 0) == []
