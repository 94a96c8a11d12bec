import random

import pytest

from treefold.cost.flow import Sharing, max_min_rates
from treefold.cost.routes import alternatives, busiest_s, find_routes
from treefold.topology import TopologyBuilder, known_topology


def chosen(machine, traffic):
    """Return the routes that traffic of this size takes."""
    found = find_routes(machine, traffic)
    return found.shared if found.shares_at(1) else found.alone


def cases(count):
    """Return lanes on resources at random, with sizes and capacities."""
    numbers = random.Random(count)  # noqa: S311 - nothing is secret here
    for _ in range(count):
        num_resources, num_lanes = numbers.randint(1, 8), numbers.randint(1, 20)
        resources = [
            tuple(numbers.sample(range(num_resources), numbers.randint(1, min(3, num_resources))))
            for _ in range(num_lanes)
        ]
        nbytes = [numbers.choice([1.0, 2.0, 0.1, 7.5]) for _ in range(num_lanes)]
        yield resources, nbytes, [numbers.choice([1.0, 10.0, 25.0]) for _ in range(num_resources)]


class TestMaxMinRates:
    def test_are_feasible_and_nobody_can_get_more(self):
        """Every lane has a full resource on which nobody gets more than it: the definition of max-min fairness."""
        for resources, nbytes, capacities in cases(300):
            rates = max_min_rates(range(len(resources)), resources, nbytes, capacities)
            loads = [0.0] * len(capacities)
            highest = [0.0] * len(capacities)
            for lane, used in enumerate(resources):
                for resource in used:
                    loads[resource] += rates[lane] * nbytes[lane]
                    highest[resource] = max(highest[resource], rates[lane])
            assert all(load <= capacity * (1 + 1e-6) for load, capacity in zip(loads, capacities, strict=True))
            for lane, used in enumerate(resources):
                assert any(
                    loads[r] >= capacities[r] * (1 - 1e-6) and rates[lane] >= highest[r] * (1 - 1e-6) for r in used
                )

    def test_give_large_chunks_more(self):
        """Chunks of 3 and 1 on a link of 8 end together: 2 chunks per second each."""
        assert max_min_rates([0, 1], [(0,), (0,)], [3.0, 1.0], [8.0]) == {0: 2.0, 1: 2.0}


class TestSharing:
    def test_is_what_sharing_anew_gives(self):
        """Lanes come and go; what has not changed keeps its rate."""
        numbers = random.Random(5)  # noqa: S311 - nothing is secret here
        for resources, nbytes, capacities in cases(40):
            sharing, rates, active = Sharing(resources, nbytes, capacities), {}, set()
            for _ in range(30):
                lane = numbers.randrange(len(resources))
                if lane in active:
                    active.discard(lane)
                    sharing.remove(lane)
                    rates.pop(lane)
                else:
                    active.add(lane)
                    sharing.add(lane)
                rates.update(sharing.changes())
                assert rates == pytest.approx(max_min_rates(active, resources, nbytes, capacities))


def two_ways():
    """Return two devices with an NVLink of 25 GB/s and a switch of 12 GB/s between them."""
    builder = TopologyBuilder("two ways").device("gpu:0").device("gpu:1").switch("sw")
    builder.link("gpu:0", "gpu:1", gb_per_s=25, alpha_us=1, kind="nvlink")
    for device in ("gpu:0", "gpu:1"):
        builder.link(device, "sw", gb_per_s=12, alpha_us=5, kind="pcie")
    return builder.build()


class TestRoutes:
    def test_are_the_shortest_of_every_kind(self):
        """NVLink and PCIe, NVLink first."""
        assert alternatives(two_ways(), "gpu:0", "gpu:1") == (("gpu:0", "gpu:1"), ("gpu:0", "sw", "gpu:1"))

    def test_go_through_no_third_device_where_they_need_not(self):
        """On a DGX-1V, GPU 0 has a link to GPU 4 and none to GPU 5: there another one forwards."""
        machine = known_topology("dgx1_v100")
        assert alternatives(machine, "gpu:0", "gpu:4") == (("gpu:0", "gpu:4"),)
        [route] = alternatives(machine, "gpu:0", "gpu:5")
        assert len(route) == 3
        assert route[1] in {"gpu:1", "gpu:4"}

    def test_are_shared_where_that_pays(self):
        """37 GB/s in all for 1 GB; for 1 KB the longer way costs more than it brings."""
        large = chosen(two_ways(), {("gpu:0", "gpu:1"): 1e9})
        assert busiest_s(two_ways(), {("gpu:0", "gpu:1"): 1e9}, large) == pytest.approx(1 / 37, rel=0.01)
        assert sum(route.share for route in large["gpu:0", "gpu:1"]) == pytest.approx(1)
        [small] = chosen(two_ways(), {("gpu:0", "gpu:1"): 1e3})["gpu:0", "gpu:1"]
        assert small.nodes == ("gpu:0", "gpu:1")
        assert small.alpha_s == pytest.approx(1e-6)

    def test_spread_over_the_planes_of_a_fabric(self):
        """Six switches between two devices: a sixth through each."""
        builder = TopologyBuilder("planes").device("gpu:0").device("gpu:1")
        for plane in range(6):
            builder.switch(f"sw{plane}")
            for device in ("gpu:0", "gpu:1"):
                builder.link(device, f"sw{plane}", gb_per_s=25, kind="nvlink")
        machine = builder.build()
        routes = chosen(machine, {("gpu:0", "gpu:1"): 1e9})
        assert busiest_s(machine, {("gpu:0", "gpu:1"): 1e9}, routes) == pytest.approx(1 / 150, rel=0.01)
