import itertools
from collections import Counter

import numpy as np
import pytest

from treefold.backends.numpy import NumpyBackend
from treefold.execution.interface import Operand
from treefold.execution.local import StepWalk
from treefold.fold import Fold
from treefold.planners.method import one_array
from treefold.planners.star import one_shot, star, two_shot
from treefold.reduce_op import ReduceOp
from treefold.testing import owned, owned_sum
from treefold.topology import TopologyBuilder, known_topology
from treefold.topology.cost import from_copies, simulate
from treefold.topology.cost.routes import alternatives
from treefold.topology.planning import ring
from treefold.topology.planning.registry import MachineMethods
from treefold.topology.planning.ring import around, pack_rings, ring_trees
from treefold.topology.planning.tree_packing import along


def gpus(count):
    return tuple(f"gpu:{number}" for number in range(count))


def links(movement):
    """Return how many bytes each pair of devices exchanges, and in how many copies."""
    nbytes, copies = Counter(), Counter()
    for hop in movement.hops:
        nbytes[hop.source, hop.target] += hop.nbytes
        copies[hop.source, hop.target] += 1
    return nbytes, copies


def true_sums(movement, count, length):
    """Run a movement step by step and look at every device's result."""
    arrays = tuple(owned(replica, (length,)) for replica in range(count))
    walk = StepWalk(movement, [Operand(NumpyBackend(), arrays, (length,))], Fold(ReduceOp.SUM))
    for step in movement.steps:
        for target, array in [(action.target, walk.evaluate(action)) for action in step.actions]:
            walk.write(target, array)
    return all(np.array_equal(result, owned_sum(count, (length,))) for result in walk.results()[0])


class TestMachineMethods:
    @pytest.mark.parametrize(
        ("name", "radius", "centre"),
        [
            ("ring:5", 2, "gpu:0"),
            ("line:5", 2, "gpu:2"),
            ("line:2", 1, "gpu:0"),
            ("mesh:4", 1, "gpu:0"),
            ("ring:8", 4, "gpu:0"),
        ],
    )
    def test_know_the_least_depth_and_the_centre(self, name, radius, centre):
        methods = MachineMethods(known_topology(name))
        assert (methods.radius, methods.centre, methods.shallow) == (radius, centre, f"shallow#{radius}")

    @pytest.mark.parametrize(("name", "is_shallow"), [("mesh:4", True), ("dgx_h100", True), ("p3_8xlarge", False)])
    def test_know_equal_trees_by_two_names_as_one_method(self, name, is_shallow):
        """Where the best of all trees are as shallow as can be, nothing is planned twice."""
        methods = MachineMethods(known_topology(name))
        assert (methods["trees"] is methods[methods.shallow]) == is_shallow


class TestOneShot:
    @pytest.mark.parametrize("count", range(1, 9))
    def test_costs_one_copy_per_pair(self, count):
        movement = one_shot().movement(one_array(gpus(count), 6))
        _, copies = links(movement)
        assert copies == Counter({(a, b): 1 for a in gpus(count) for b in gpus(count) if a != b})
        assert len({hop.step for hop in movement.hops}) <= 1
        assert {hop.nbytes for hop in movement.hops} <= {24}
        assert true_sums(movement, count, 6)

    def test_gives_the_bits_of_one_pass(self):
        assert one_shot().movement(one_array(gpus(5))).proof.is_flat
        assert not along(ring_trees(gpus(5)), "ring").movement(one_array(gpus(5))).proof.is_flat


class TestTwoShot:
    @pytest.mark.parametrize("count", range(2, 9))
    def test_costs_two_copies_per_pair_of_a_part(self, count):
        movement = two_shot(gpus(count)).movement(one_array(gpus(count), 10 * count))
        _, copies = links(movement)
        assert copies == Counter({(a, b): 2 for a in gpus(count) for b in gpus(count) if a != b})
        assert len({hop.step for hop in movement.hops}) == 2
        assert {hop.nbytes for hop in movement.hops} == {40}
        assert true_sums(movement, count, 10 * count)


class TestStar:
    def test_meets_where_it_is_told(self):
        assert links(star("gpu:0").movement(one_array(gpus(3), 1)))[0].keys() == {(a, b) for a, b in zip(
            ("gpu:1", "gpu:2", "gpu:0", "gpu:0"), ("gpu:0", "gpu:0", "gpu:1", "gpu:2"), strict=True)}  # fmt: skip
        assert all("gpu:2" in pair for pair in links(star("cuda:2").movement(one_array(gpus(3), 1)))[0])


class TestRings:
    @pytest.mark.parametrize("count", range(2, 9))
    def test_load_every_link_alike(self, count):
        """2·(n − 1)/n of the values on each link of the ring, on no other."""
        movement = along(ring_trees(gpus(count)), "ring").movement(one_array(gpus(count), 10 * count))
        around = zip(gpus(count), (*gpus(count)[1:], "gpu:0"), strict=True)
        assert links(movement)[0] == dict.fromkeys(around, 2 * (count - 1) * 40)
        assert true_sums(movement, count, 10 * count)


def crossings(packing, machine):
    """Return how many rings cross each directed link, along the shortest routes."""
    return Counter(
        link
        for order in packing.orders
        for pair in around(order)
        for link in itertools.pairwise(alternatives(machine, *pair)[0])
    )


class TestPackedRings:
    @pytest.mark.parametrize(
        ("name", "count", "gb_per_s"),
        [
            ("ring:5", 2, 25),  # one around, one back
            ("dgx1_p100", 4, 20),  # each of four NVLinks, out and in
            ("dgx1_v100", 6, 25),  # each of six
            ("p3_8xlarge", 4, 25),
            ("mi300x", 7, 48),  # Tillson 1980: eight devices, all joined, are seven rings
            ("mi250", 6, 50),  # six links leave each module of two
            ("dgx_a100", 1, 300),  # a ring fills the ports of a switch
            ("pcie3_8gpu", 1, 10),  # one each way fills the link between sockets
            ("2x8_h100", 8, 50),  # one per NIC
            ("3x8_h100", 8, 50),
            ("8x8_h100", 8, 50),
            ("2x16_mi250", 16, 16),
        ],
    )
    def test_are_as_many_as_the_links_allow(self, name, count, gb_per_s):
        """Every ring goes through all devices, and no link carries more of them than it is wide."""
        machine = known_topology(name)
        packing = pack_rings(machine)
        assert (len(packing.orders), packing.bytes_per_s) == (count, gb_per_s * 10**9)
        assert all(sorted(order) == sorted(machine.devices) for order in packing.orders)
        used = crossings(packing, machine)
        assert all(rings * packing.bytes_per_s <= machine.capacities[link] for link, rings in used.items())

    @pytest.mark.parametrize("count", [3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13])
    def test_use_every_link_between_devices_that_are_all_joined(self, count):
        """There is one ring less than devices; two less for four and for six (Tillson 1980)."""
        assert len(pack_rings(known_topology(f"mesh:{count}")).orders) == count - (2 if count in {4, 6} else 1)

    @pytest.mark.parametrize("name", ["ring:5", "line:4", "dgx1_v100", "mi300x", "dgx_a100", "pcie3_8gpu"])
    def test_are_priced_as_their_plans(self, name):
        """The closed form is within 2 % of following every copy, launch included."""
        machine = known_topology(name)
        packing = pack_rings(machine)
        movement = along(packing.trees, "rings").movement(one_array(machine.devices))
        for nbytes in (2**12, 2**28):
            line = simulate(movement, machine, nbytes, chunk_bytes=None)
            assert packing.predict_s(nbytes) == pytest.approx(line.duration_s, rel=0.02)

    @pytest.mark.parametrize("name", ["mesh:3", "mesh:4", "mesh:8"])
    def test_give_every_device_the_true_sum(self, name):
        machine = known_topology(name)
        count = len(machine.devices)
        movement = along(pack_rings(machine).trees, "rings").movement(one_array(machine.devices, 1000))
        assert true_sums(movement, count, 1000)

    def test_are_the_same_every_time(self):
        assert pack_rings(known_topology("mesh:6")) == pack_rings(known_topology("mesh:6"))

    def test_go_through_other_devices_where_there_is_no_ring(self):
        packing = pack_rings(known_topology("line:4"))
        assert packing.orders == (gpus(4),)
        assert packing.bytes_per_s == 25 * 10**9

    def test_serve_links_of_many_widths(self):
        pairs = itertools.permutations(gpus(4), 2)
        measured = {pair: (20e9 + 1e8 * number, 5e-6) for number, pair in enumerate(pairs)}
        packing = pack_rings(from_copies(gpus(4), measured))
        assert 20e9 <= packing.total <= 21.1e9

    def test_are_sought_only_where_they_can_carry_more(self, monkeypatch):
        """PCIe beside NVSwitch is on no shortest route, so thirty narrow rings cannot carry more than one of 370."""
        builder, sought = TopologyBuilder("switched").switch("nvswitch").switch("pcie"), []
        for device in gpus(8):
            builder.device(device).link(device, "nvswitch", gb_per_s=370, kind="nvlink")
            builder.link(device, "pcie", gb_per_s=12, kind="pcie")
        search = ring.find_rings
        monkeypatch.setattr(
            ring, "find_rings", lambda *given, **how: sought.append(how["most"]) or search(*given, **how)
        )
        packing = pack_rings(builder.build())
        assert (sought, len(packing.orders), packing.bytes_per_s) == ([1], 1, 370e9)
