from dataclasses import dataclass

import pytest

from treefold.plan import Movement
from treefold.planners.method import one_array
from treefold.topology import Topology, known_topology
from treefold.topology.cost import simulate
from treefold.topology.drawing.packs import DrawnPack, packs_of
from treefold.topology.planning.tree_packing import TreePacking, along_packing, optimal_packing
from treefold.topology.timeline import Timeline


@dataclass(frozen=True)
class Planned:
    topology: Topology
    packing: TreePacking
    movement: Movement
    packs: tuple[DrawnPack, ...]
    timeline: Timeline


@pytest.fixture(scope="session")
def planned():
    """Return a function from a machine's name to its packing, plan and timeline, with four chunks to a pack."""

    def make(name, packs=4, nbytes=2**20):
        topology = known_topology(name)
        packing = optimal_packing(topology, packs=packs)
        movement = along_packing(packing).movement(one_array(topology.devices))
        timeline = simulate(movement, topology, nbytes, chunk_bytes=nbytes / packs / 4)
        return Planned(topology, packing, movement, packs_of(movement), timeline)

    return make
