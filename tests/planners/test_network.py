import pytest

from treefold import known_topology
from treefold.planners.tree_packing.network import Network

CARRIERS = {"dgx1_v100": (0, 0), "dgx2": (1, 1), "pcie3_8gpu": (2, 2), "2x8_h100": (26, 2), "4x8_h100": (44, 12)}


class TestNetwork:
    @pytest.mark.parametrize(("name", "counts"), CARRIERS.items())
    def test_passes_over_carriers_that_only_join_two(self, name, counts):
        """A NIC between one device and one switch is no choice; nor is the rail switch that joins two hosts."""
        topology = known_topology(name)
        carriers = [kind for kind in topology.kinds.values() if kind != "device"]
        assert (len(carriers), Network(topology).num_carriers) == counts
