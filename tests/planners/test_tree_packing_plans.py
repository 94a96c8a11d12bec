import dataclasses
import itertools
import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest

from treefold import ReduceOp, known_topology, optimal_packing
from treefold.errors import PlanError
from treefold.execution import execute
from treefold.execution.interface import Operand
from treefold.fold import Fold
from treefold.plan import Plan
from treefold.plan.ir import Combine, Goal, Leaf
from treefold.planners import LeafWork
from treefold.planners.packing import Item, split_by_shares
from treefold.testing import FakeBackend, owned, owned_sum
from treefold.topology import TopologyBuilder
from treefold.topology.planning.tree_packing import along_packing

MACHINES = ["dgx1_v100", "dgx1_p100", "p3_8xlarge", "ring:5", "line:6", "dgx_h100", "mi250", "2x8_h100", "pcie3_8gpu"]


def work_on(devices, *lengths, dtype="float32"):
    """Return leaves of these lengths, one replica per device, in the order of the devices."""
    return [LeafWork(Leaf(dtype, Goal.FOLD), (n,) * len(devices), devices, devices) for n in lengths]


def uneven_ring(count):
    """Return a ring that is wider in one direction."""
    builder = TopologyBuilder("uneven ring")
    for number in range(count):
        builder.device(f"gpu:{number}")
    for number in range(count):
        builder.link(f"gpu:{number}", f"gpu:{(number + 1) % count}", gb_per_s=30, back_gb_per_s=10)
    return builder.build()


def run(movement, sources, lengths):
    """Run a movement on fake devices, replica r bringing its owned values; return results per leaf and component."""
    fake = FakeBackend(16)
    operands = [
        Operand(fake, tuple(fake.array(owned(r, (n,)), device) for r, device in enumerate(sources)), (n,))
        for n in lengths
    ]
    parts = {"leaves": movement.leaves, "buffers": movement.buffers, "steps": movement.steps}
    plan = Plan(**parts, collective="all_reduce", algorithm="trees", paths=("",) * len(lengths))
    results = execute(plan, operands, Fold(ReduceOp.SUM))
    assert Counter((h.source, h.target, h.nbytes) for h in fake.hops) == Counter(
        (h.source, h.target, h.nbytes) for h in movement.hops
    )
    return [[(array.device, array.data) for array in leaf] for leaf in results]


class TestAlongPacking:
    @pytest.mark.parametrize("name", MACHINES)
    def test_reduces_on_every_machine(self, name):
        topology = known_topology(name)
        packing = optimal_packing(topology)
        lengths = (1000, 1, 77)
        movement = along_packing(packing).movement(work_on(topology.devices, *lengths))
        for length, results in zip(lengths, run(movement, topology.devices, lengths), strict=True):
            assert [device for device, _ in results] == list(topology.devices)
            for _, data in results:
                np.testing.assert_array_equal(data, owned_sum(len(topology.devices), (length,)))
        hops = Counter(hop.pack for hop in movement.hops)
        assert set(hops.values()) == {2 * (len(topology.devices) - 1)}
        assert movement.num_packs == len(hops) == len(packing.trees)

    @pytest.mark.parametrize("name", [*MACHINES, "uneven"])
    def test_loads_no_link_beyond_its_capacity(self, name):
        topology = uneven_ring(5) if name == "uneven" else known_topology(name)
        packing = optimal_packing(topology)
        length = math.lcm(*(tree.share.denominator for tree in packing.trees))  # so that no pack is rounded
        movement = along_packing(packing).movement(work_on(topology.devices, length))
        loads = Counter()
        for pack, tree in enumerate(packing.trees):
            routes = {(route[0], route[-1]): route for route in tree.up}
            down = {(route[0], route[-1]): route for route in tree.down}
            hops = [hop for hop in movement.hops if hop.pack == pack]
            assert Counter((hop.source, hop.target) for hop in hops) == Counter([*routes, *down])
            for number, hop in enumerate(hops):
                route = (routes if number < len(routes) else down)[hop.source, hop.target]
                loads.update(dict.fromkeys(itertools.pairwise(route), hop.nbytes))
        seconds = max(nbytes / topology.capacities[link] for link, nbytes in loads.items())
        assert seconds == 4 * length / packing.algbw

    def test_serves_several_replicas_on_a_device(self):
        topology = known_topology("p3_8xlarge")
        devices = ("gpu:2", "gpu:0", "gpu:0", "gpu:3", "gpu:1", "gpu:2")
        work = [LeafWork(Leaf("float32", Goal.FOLD), (60,) * 6, devices, topology.devices)]
        movement = along_packing(optimal_packing(topology)).movement(work)
        for _, data in run(movement, devices, (60,))[0]:
            np.testing.assert_array_equal(data, owned_sum(6, (60,)))
        assert set(Counter(hop.pack for hop in movement.hops).values()) == {6}

    def test_folds_in_replica_order_at_each_device(self):
        topology = known_topology("dgx1_v100")
        movements = [
            along_packing(optimal_packing(topology)).movement(work_on(topology.devices, 500)) for _ in range(2)
        ]
        assert movements[0] == movements[1]
        assert not movements[0].proof.is_flat

    def test_needs_no_partial_fold_on_a_star(self):
        topology = known_topology("dgx_a100")
        movement = along_packing(optimal_packing(topology)).movement(work_on(topology.devices, 800))
        assert movement.proof.is_flat
        combines = [action for step in movement.steps for action in step.actions if isinstance(action, Combine)]
        assert {len(action.sources) for action in combines} == {8}

    def test_packs_each_dtype_apart(self):
        topology = known_topology("p3_8xlarge")
        packing = optimal_packing(topology)
        work = work_on(topology.devices, 300) + work_on(topology.devices, 3, dtype="float64")
        movement = along_packing(packing).movement(work)
        kinds = {}
        for action in (action for step in movement.steps for action in step.actions):
            kinds.setdefault(action.pack, set()).add(movement.leaves[movement.buffers[action.target.buffer].leaf].dtype)
        assert all(len(dtypes) == 1 for dtypes in kinds.values())
        assert len(packing.trees) < movement.num_packs == len(kinds) <= len(packing.trees) + 3

    def test_leaves_out_packs_without_elements(self):
        topology = known_topology("dgx1_v100")
        packing = optimal_packing(topology)
        assert along_packing(packing).movement(work_on(topology.devices, 2)).num_packs <= 2
        assert along_packing(packing).movement(work_on(topology.devices, 0)).num_packs == 0

    def test_runs_on_one_device(self):
        packing = optimal_packing(known_topology("dgx2"), ["gpu:3"])
        movement = along_packing(packing).movement(work_on(("gpu:3",), 5))
        assert movement.hops == ()
        np.testing.assert_array_equal(run(movement, ("gpu:3",), (5,))[0][0][1], owned_sum(1, (5,)))

    def test_is_proved(self):
        packing = optimal_packing(known_topology("ring:3"), packs=1)
        [tree] = packing.trees
        lame = dataclasses.replace(packing, trees=(dataclasses.replace(tree, up=tree.up[1:]),))
        with pytest.raises(PlanError, match="is finished without replica"):
            along_packing(lame).movement(work_on(packing.devices, 5))


class TestSplitByShares:
    def test_cuts_in_proportion(self):
        items = [Item(4, "float32", 3), Item(7, "float32", 7)]
        packs = split_by_shares(items, [Fraction(1, 2), Fraction(1, 5), Fraction(3, 10)])
        found = [[(f.leaf, f.start, f.stop) for f in pack.fragments] for pack in packs]
        assert found == [[(4, 0, 3), (7, 0, 2)], [(7, 2, 4)], [(7, 4, 7)]]

    @pytest.mark.parametrize("length", [0, 1, 5, 99, 1000])
    def test_is_off_by_one_element_at_most(self, length):
        shares = [Fraction(n, 28) for n in range(1, 8)]
        packs = split_by_shares([Item(0, "int8", length)], shares)
        assert len(packs) == 7
        assert sum(pack.length for pack in packs) == length
        assert all(abs(pack.length - length * share) <= 1 for pack, share in zip(packs, shares, strict=True))
