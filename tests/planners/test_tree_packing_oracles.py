import functools

import pytest
from packing_oracles import (
    CASES,
    all_trees,
    best_over_all_trees,
    best_partition,
    best_rooted_flows,
    check_certificate,
    check_trees,
    random_direct,
    random_routed,
)

from treefold import known_topology, optimal_packing
from treefold.topology import TopologyBuilder

BLOCKS = 6  # the random machines of each kind, so many tests: they run side by side
SEEDS = [range(block, CASES, BLOCKS) for block in range(BLOCKS)]
KINDS = {
    "direct": (random_direct, best_partition),
    "routed": (random_routed, best_over_all_trees),
    "uneven": (functools.partial(random_direct, is_symmetric=False), best_rooted_flows),
}


class TestOracles:
    def test_agree_with_theory(self):
        assert sum(1 for _ in all_trees(5)) == 5**3
        assert best_partition(known_topology("dgx1_v100").restricted([f"gpu:{n}" for n in range(6)])) == 62_500_000_000
        assert best_partition(known_topology("ring:5")) == 5 * 25 * 10**9 / 4
        assert best_over_all_trees(known_topology("ring:5")) == pytest.approx(5 * 25e9 / 4)
        assert best_over_all_trees(known_topology("dgx2").restricted(["gpu:0", "gpu:1", "gpu:2"])) == pytest.approx(
            112.5e9
        )
        assert best_rooted_flows(known_topology("ring:5")) == pytest.approx(5 * 25e9 / 4)


class TestRandomMachines:
    @pytest.mark.parametrize("seeds", SEEDS, ids=str)
    @pytest.mark.parametrize("kind", KINDS)
    def test_reach_the_optimum(self, kind, seeds):
        machine, best = KINDS[kind]
        for seed in seeds:
            topology = machine(seed)
            packing = optimal_packing(topology)
            assert packing.algbw_bytes_per_s == pytest.approx(float(best(topology)), rel=1e-7), topology.name
            assert packing.gap < 1e-7
            if best is best_partition:
                assert packing.certificate.bound == best(topology)
                assert packing.certificate.is_partition
            check_trees(packing, topology)
            check_certificate(packing, topology)

    @pytest.mark.parametrize("seeds", SEEDS[:2], ids=str)
    def test_keep_within_their_links_for_any_number_of_packs(self, seeds):
        for seed in list(seeds)[:20]:
            topology = random_routed(seed) if seed % 2 else random_direct(seed)
            for packs in (1, 2, 5):
                packing = optimal_packing(topology, packs=packs)
                check_trees(packing, topology)
                assert packing.algbw <= packing.certificate.bound


class TestUnevenLinks:
    def test_plan_the_ways_up_and_down_apart(self):
        """A ring in one direction: values go round to the root, and the result goes on round from there."""
        builder = TopologyBuilder().device("gpu:0").device("gpu:1").device("gpu:2")
        for number in range(3):
            builder.link(f"gpu:{number}", f"gpu:{(number + 1) % 3}", gb_per_s=20, one_way=True)
        packing = optimal_packing(builder.build())
        assert packing.algbw == packing.certificate.bound == 15 * 10**9
        assert all(route[0] != tree.root or route == tree.down[0] for tree in packing.trees for route in tree.down)
        [note] = packing.notes
        assert note.startswith(
            "Links differ in their two directions: the bound is that of plans that reduce each element"
        )

    def test_say_what_is_lost_where_the_two_ways_are_one(self):
        """More than 48 devices: up and down use the same tree, and a note has the loss against the bound."""
        builder = TopologyBuilder()
        for number in range(49):
            builder.device(f"gpu:{number}")
        for number in range(49):
            builder.link(f"gpu:{number}", f"gpu:{(number + 1) % 49}", gb_per_s=20, back_gb_per_s=5)
        topology = builder.build()
        packing = optimal_packing(topology)
        check_trees(packing, topology)
        assert packing.algbw == pytest.approx(49 * 5e9 / 48)
        assert packing.certificate.is_directed
        assert packing.gap > 0.5
        assert packing.notes[1] == f"{packing.gap:.2%} of the bound is not reached."
