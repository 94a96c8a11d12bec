import pytest

from lab import Cable, Trunk, racks, rails, star


class TestNetworks:
    def test_star(self):
        """One switch, and a host for each rate."""
        network = star(100, 25)
        assert network.cables == (Cable(0, 0, 0, 100), Cable(1, 0, 0, 25))
        assert (network.hosts, network.switches, network.nics, network.trunks) == (2, 1, 1, ())

    def test_racks(self):
        """A switch per rack; trunks lead from the first one to the others; hosts are numbered rack by rack."""
        network = racks(50, (100, 100), (20,), (10,))
        assert [(cable.host, cable.switch, cable.mbit_per_s) for cable in network.cables] == [
            (0, 0, 100),
            (1, 0, 100),
            (2, 1, 20),
            (3, 2, 10),
        ]
        assert network.trunks == (Trunk(0, 1, 50), Trunk(0, 2, 50))

    def test_rails(self):
        """NIC k of every host leads to switch k."""
        network = rails(10, hosts=2, nics=2)
        assert network.cables == (Cable(0, 0, 0, 10), Cable(0, 1, 1, 10), Cable(1, 0, 0, 10), Cable(1, 1, 1, 10))
        assert (network.hosts, network.switches, network.nics) == (2, 2, 2)

    @pytest.mark.parametrize(
        ("network", "name"),
        [
            (star(100, 25), "star 100 25"),
            (racks(50, (100,), (20, 20)), "racks 100 + 20 20, trunk 50"),
            (rails(10, hosts=2, nics=3), "rails 2 x 3 x 10"),
        ],
    )
    def test_says_what_it_is(self, network, name):
        """The name of a network is a line of a table of measurements."""
        assert network.name == name
