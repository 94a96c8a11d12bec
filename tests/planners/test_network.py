import numpy as np
import pytest

from treefold import known_topology
from treefold.topology import TopologyBuilder
from treefold.topology.planning.tree_packing.network import Network

CARRIERS = {"dgx1_v100": (0, 0), "dgx2": (1, 1), "pcie3_8gpu": (2, 2), "2x8_h100": (26, 2), "4x8_h100": (44, 12)}


class TestNetwork:
    @pytest.mark.parametrize(("name", "counts"), CARRIERS.items())
    def test_passes_over_carriers_that_only_join_two(self, name, counts):
        """A NIC between one device and one switch is no choice; nor is the rail switch that joins two hosts."""
        topology = known_topology(name)
        carriers = [kind for kind in topology.kinds.values() if kind != "device"]
        assert (len(carriers), Network(topology).num_carriers) == counts


def row_of_switches(count):
    """Return a machine with switches in a row, two devices at each."""
    builder = TopologyBuilder("row")
    for number in range(count):
        builder = builder.switch(f"s{number}")
        for device in (2 * number, 2 * number + 1):
            builder = builder.device(f"gpu:{device}").link(f"gpu:{device}", f"s{number}", gb_per_s=10)
        if number:
            builder = builder.link(f"s{number - 1}", f"s{number}", gb_per_s=10)
    return builder.build()


class TestRoutes:
    @pytest.mark.parametrize("count", [2, 3, 4])
    def test_lead_through_as_many_carriers_as_it_takes(self, count):
        network = Network(row_of_switches(count))
        routes = network.routes(np.ones(len(network.capacities)))
        last = len(network.devices) - 1
        assert routes.route(0, last) == ("gpu:0", *(f"s{number}" for number in range(count)), f"gpu:{last}")
        assert routes.cost_there_and_back[0, last] == count + 1  # a row of this machine stands for both directions
