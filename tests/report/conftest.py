from dataclasses import dataclass

import pytest

from treefold.cost import simulate
from treefold.plan import Plan
from treefold.planners.method import one_array
from treefold.planners.tree_packing import TreePacking, optimal_packing, plan_trees
from treefold.timeline import Timeline
from treefold.topology import Topology, known_topology


@dataclass(frozen=True)
class Planned:
    topology: Topology
    packing: TreePacking
    plan: Plan
    timeline: Timeline


@pytest.fixture(scope="session")
def planned():
    """Return a function from a machine's name to its packing, plan and timeline, with four chunks to a pack."""

    def make(name, packs=4, nbytes=2**20):
        topology = known_topology(name)
        packing = optimal_packing(topology, packs=packs)
        plan = plan_trees(one_array(topology.devices), packing)
        return Planned(topology, packing, plan, simulate(plan, topology, nbytes, chunk_bytes=nbytes / packs / 4))

    return make
