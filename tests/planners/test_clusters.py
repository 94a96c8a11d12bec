import json

import pytest

from treefold.planners.method import one_array
from treefold.topology import known_topology
from treefold.topology.cost import simulate
from treefold.topology.load import load_topology
from treefold.topology.planning.compare import Comparison, choose
from treefold.topology.planning.registry import MachineMethods
from treefold.topology.planning.tree_packing import optimal_packing


def cluster(*ports, rails=1, alpha_us=10.0, kind="net"):
    """Return hosts with one device each, read from JSON, with ports of this many GB/s to a switch per rail."""
    links = [
        {"between": [f"cpu:{host}", f"rail{rail}"], "gb_per_s": port, "alpha_us": alpha_us, "kind": kind}
        for host, port in enumerate(ports)
        for rail in range(rails)
    ]
    plain = {"devices": [f"cpu:{host}" for host in range(len(ports))], "switches": [f"rail{r}" for r in range(rails)]}
    return load_topology(json.dumps(plain | {"name": "cluster", "links": links}))


def gb_per_s(topology, name):
    movement = MachineMethods(topology)[name].movement(one_array(topology.devices, 840 * len(topology.devices)))
    nbytes = 2**30
    return nbytes / simulate(movement, topology, nbytes, launch_s=0.0).duration_s / 1e9


class TestDirectBetweenHosts:
    @pytest.mark.parametrize("hosts", range(2, 9))
    @pytest.mark.parametrize("rails", [1, 2])
    def test_reaches_the_optimum_on_a_switch(self, hosts, rails):
        topology = cluster(*[1.25] * hosts, rails=rails, alpha_us=0)
        best = optimal_packing(topology).bound_bytes_per_s / 1e9
        assert best == pytest.approx(rails * 1.25 * hosts / (2 * (hosts - 1)))
        assert gb_per_s(topology, "direct") == pytest.approx(best, rel=1e-6)

    def test_reaches_the_optimum_beside_a_slow_port(self):
        topology = cluster(1.25, 1.25, 1.25, 0.3125, alpha_us=0)
        assert optimal_packing(topology).bound_bytes_per_s == pytest.approx(0.3125e9)
        assert gb_per_s(topology, "direct") == pytest.approx(0.3125, rel=1e-3)
        assert gb_per_s(topology, "twoshot") == pytest.approx(0.3125 * 2 / 3, rel=1e-3)

    def test_crosses_between_hosts_once_per_slice(self):
        """Each host folds its own first; ranks of one place meet over their rail."""
        machine = known_topology("2x8_h100")
        movement = MachineMethods(machine)["direct"].movement(one_array(machine.devices, 160))
        place = {device: number for number, device in enumerate(machine.devices)}
        pairs = [(place[hop.source], place[hop.target]) for hop in movement.hops]
        crossing = [(a, b) for a, b in pairs if a // 8 != b // 8]
        assert sorted(crossing) == sorted([(a, (a + 8) % 16) for a in range(16)] * 2)

    def test_is_taken_where_it_is_as_good(self):
        assert str(choose(Comparison(cluster(*[1.25] * 4)))) == "oneshot:13k:direct:inf"

    def test_gives_the_bits_of_one_pass_with_one_value_per_host(self):
        machine = cluster(1.25, 1.25, 0.3125)
        assert MachineMethods(machine)["direct"].movement(one_array(machine.devices, 99)).proof.is_flat

    @pytest.mark.parametrize(
        ("topology", "is_offered"),
        [
            (cluster(1, 1, 1), True),
            (cluster(1, 1, 1, kind="nvlink"), False),
            (known_topology("dgx_a100"), False),
            (known_topology("2x8_h100"), True),
            (known_topology("16x8_h100"), False),  # 128 slices: too many copies
        ],
    )
    def test_is_offered_between_some_hosts(self, topology, is_offered):
        """A host is what no NIC and no link of kind net has to join; machines have at most 64 devices."""
        assert Comparison(topology).offers_direct == is_offered
