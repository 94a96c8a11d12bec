from collections import Counter

import numpy as np
import pytest

from treefold.planners.methods import one_array, plan_along, plan_one_shot, plan_star, plan_two_level, plan_two_shot
from treefold.planners.ring import ring_trees, two_rings, widest_ring
from treefold.testing import VirtualClock, emulate, owned, owned_sum
from treefold.topology import known_topology


def gpus(count):
    """Return names of devices."""
    return tuple(f"gpu:{number}" for number in range(count))


def links(plan):
    """Return how many bytes each pair of devices exchanges, and in how many copies."""
    nbytes, copies = Counter(), Counter()
    for hop in plan.hops:
        nbytes[hop.source, hop.target] += hop.nbytes
        copies[hop.source, hop.target] += 1
    return nbytes, copies


def true_sums(plan, count, length):
    """Run a plan on a mesh and look at every device's result."""
    inputs = [[owned(replica, (length,)) for replica in range(count)]]
    done = emulate(known_topology(f"mesh:{count}"), clock=VirtualClock()).run(plan, inputs)
    return all(np.array_equal(result, owned_sum(count, (length,))) for result in done.results[0])


class TestOneShot:
    @pytest.mark.parametrize("count", range(1, 9))
    def test_costs_one_copy_per_pair(self, count):
        """n·(n − 1) copies of everything, all in one step."""
        plan = plan_one_shot(one_array(gpus(count), 6))
        _, copies = links(plan)
        assert copies == Counter({(a, b): 1 for a in gpus(count) for b in gpus(count) if a != b})
        assert len({hop.step for hop in plan.hops}) <= 1
        assert {hop.nbytes for hop in plan.hops} <= {24}
        assert true_sums(plan, count, 6)

    def test_gives_the_bits_of_one_pass(self):
        """All contributions meet on every device, in replica order."""
        assert plan_one_shot(one_array(gpus(5))).guarantee == "replica_order"
        assert plan_along(one_array(gpus(5)), ring_trees(gpus(5)), "ring").guarantee == "per_plan"


class TestTwoShot:
    @pytest.mark.parametrize("count", range(2, 9))
    def test_costs_two_copies_per_pair_of_a_part(self, count):
        """2·n·(n − 1) copies of an n-th part, in two steps."""
        plan = plan_two_shot(one_array(gpus(count), 10 * count))
        _, copies = links(plan)
        assert copies == Counter({(a, b): 2 for a in gpus(count) for b in gpus(count) if a != b})
        assert len({hop.step for hop in plan.hops}) == 2
        assert {hop.nbytes for hop in plan.hops} == {40}
        assert true_sums(plan, count, 10 * count)


class TestStar:
    def test_meets_where_it_is_told(self):
        """On the first destination, or on the device named, however it is spelled."""
        assert links(plan_star(one_array(gpus(3), 1)))[0].keys() == {(a, b) for a, b in zip(
            ("gpu:1", "gpu:2", "gpu:0", "gpu:0"), ("gpu:0", "gpu:0", "gpu:1", "gpu:2"), strict=True)}  # fmt: skip
        assert all("gpu:2" in pair for pair in links(plan_star(one_array(gpus(3), 1), "cuda:2"))[0])


class TestTwoLevel:
    def test_is_that_of_the_ops(self):
        """Fourteen copies per pack between eight devices."""
        plan = plan_two_level(one_array(gpus(8), 16), 2)
        assert Counter(hop.pack for hop in plan.hops) == {0: 14, 1: 14}


class TestRings:
    @pytest.mark.parametrize("count", range(2, 9))
    def test_load_every_link_alike(self, count):
        """2·(n − 1)/n of the values on each link of the ring, on no other."""
        plan = plan_along(one_array(gpus(count), 10 * count), ring_trees(gpus(count)), "ring")
        around = zip(gpus(count), (*gpus(count)[1:], "gpu:0"), strict=True)
        assert links(plan)[0] == dict.fromkeys(around, 2 * (count - 1) * 40)
        assert true_sums(plan, count, 10 * count)

    @pytest.mark.parametrize("count", range(3, 9))
    def test_in_two_directions_halve_that(self, count):
        """Each link carries half as much, both ways."""
        plan = plan_along(one_array(gpus(count), 20 * count), two_rings(gpus(count)), "rings")
        assert set(links(plan)[0].values()) == {2 * (count - 1) * 40}
        assert len(links(plan)[0]) == 2 * count
        assert true_sums(plan, count, 20 * count)

    def test_take_the_widest_links(self):
        """A DGX-1V has a ring of double links."""
        machine = known_topology("dgx1_v100")
        order = widest_ring(machine)
        assert sorted(order) == sorted(machine.devices)
        assert {machine.capacity(a, b) for a, b in zip(order, (*order[1:], order[0]), strict=True)} == {50 * 10**9}

    def test_take_the_given_order_where_there_is_none(self):
        """A line has no ring, and a switch joins all alike."""
        assert widest_ring(known_topology("line:4")) == gpus(4)
        assert widest_ring(known_topology("dgx_a100")) == gpus(8)
