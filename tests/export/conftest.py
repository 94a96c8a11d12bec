import math

import pytest

from treefold.planners.methods import one_array
from treefold.planners.tree_packing import optimal_packing, plan_trees
from treefold.topology import known_topology


def _packed(name, packs=None, devices=None):
    """Return the plan of a machine's packing, for the shortest array that its shares divide."""
    packing = optimal_packing(known_topology(name), devices, packs=packs)
    chunks = math.lcm(*(tree.share.denominator for tree in packing.trees))
    return plan_trees(one_array(packing.devices, length=chunks), packing)


@pytest.fixture(scope="session")
def packed():
    """Return a function from a machine's name and a number of packs to a plan."""
    return _packed
