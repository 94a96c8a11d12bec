"""Connected sets of GPUs of a DGX-1V: trees against rings, and against ReduceScatter then AllGather at their best."""

import itertools
import os
import statistics
from fractions import Fraction

import pytest

from treefold import known_topology, optimal_packing, simulate
from treefold.errors import TopologyError
from treefold.planners.method import one_array
from treefold.topology.planning.ring import pack_rings
from treefold.topology.planning.tree_packing import along_packing

MACHINE = known_topology("dgx1_v100")
NBYTES = 2**30
STEP = 1 if os.environ.get("TREEFOLD_CASES") == "full" else 9


def subsets(count):
    """Return the machines of connected sets of this many GPUs."""
    found = []
    for devices in itertools.combinations(MACHINE.devices, count):
        try:
            found.append(MACHINE.restricted(devices))
        except TopologyError:
            continue
    return found


def scatter_and_gather_bytes_per_s(machine):
    """Return the bound of two phases: each shard must leave every set of devices, and reach every set, in each."""
    devices = machine.devices
    slowest = max(
        Fraction(count) / sum(machine.capacity(a, b) for a in inside for b in devices if b not in inside)
        for count in range(1, len(devices))
        for inside in map(set, itertools.combinations(devices, count))
    )
    return Fraction(len(devices)) / (2 * slowest)


@pytest.mark.parametrize("count", range(3, 8))
def test_trees_are_faster_at_1_gib(count):
    """Never slower than rings in both directions, and at least 1.25 times as fast on average; likewise two phases."""
    against_rings, against_phases = [], []
    for machine in subsets(count)[::STEP]:
        work, packing = one_array(machine.devices), optimal_packing(machine)
        ours = simulate(along_packing(packing).movement(work), machine, NBYTES).duration_s
        against_rings.append(pack_rings(machine).predict_s(NBYTES) / ours)
        against_phases.append(float(packing.algbw / scatter_and_gather_bytes_per_s(machine)))
    assert min(against_rings) > 1
    assert min(against_phases) >= 1
    assert statistics.mean(against_rings) >= 1.25
    assert statistics.mean(against_phases) >= 1.25
