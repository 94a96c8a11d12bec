import re
from collections import Counter
from fractions import Fraction

import pytest

from treefold.errors import TopologyError
from treefold.topology import known_topology

#: devices, links of each width per device, sum of widths leaving a device in GB/s
SHAPES = {
    "dgx1_p100": (8, {20: 4}, 80),
    "dgx1_v100": (8, {25: 2, 50: 2}, 150),
    "dgx2": (16, {150: 1}, 150),
    "dgx_a100": (8, {300: 1}, 300),
    "dgx_h100": (8, {450: 1}, 450),
    "dgx_b200": (8, {900: 1}, 900),
    "mi300x": (8, {48: 7}, 336),
    "mi300x_raw": (8, {64: 7}, 448),
    "pcie3_8gpu": (8, {12: 1}, 12),
    "a100_pcie_8gpu": (8, {24: 1, 300: 1}, 324),
    "ring:8": (8, {25: 2}, 50),
    "ring:3:50": (3, {50: 2}, 100),
    "mesh:5": (5, {25: 4}, 100),
    "2x8_a100": (16, {300: 1, 25: 1}, 325),
    "2x8_h100": (16, {450: 1, 50: 1}, 500),
    "64x8_h100": (512, {450: 1, 50: 1}, 500),
    "1x8_h100": (8, {450: 1}, 450),
}


class TestKnownTopology:
    @pytest.mark.parametrize("name", SHAPES)
    def test_gives_every_device_its_links(self, name):
        count, links, total = SHAPES[name]
        topology = known_topology(name)
        assert topology.name == name
        assert topology.devices == tuple(f"gpu:{number}" for number in range(count))
        assert topology.is_symmetric
        for device in topology.devices:
            widths = [topology.capacity(device, other) / 10**9 for other in topology.neighbours(device)]
            assert Counter(widths) == {Fraction(width): number for width, number in links.items()}
            assert sum(widths) == total

    def test_wires_a_dgx1_as_its_cube_mesh(self):
        topology = known_topology("dgx1_v100")
        assert [topology.capacity("gpu:0", f"gpu:{n}") / (25 * 10**9) for n in range(8)] == [0, 1, 1, 2, 2, 0, 0, 0]
        assert sum(topology.capacities.values()) == 48 * 25 * 10**9

    def test_wires_a_p3_8xlarge_as_half_a_dgx1(self):
        quad = known_topology("dgx1_v100").restricted([f"gpu:{n}" for n in range(4)])
        assert dict(known_topology("p3_8xlarge").capacities) == dict(quad.capacities)

    def test_wires_an_mi250_box_as_packages_of_two(self):
        topology = known_topology("mi250")
        links = {ends: width / (50 * 10**9) for ends, width in topology.capacities.items()}
        number = {device: n for n, device in enumerate(topology.devices)}
        inside = {ends: n for ends, n in links.items() if number[ends[0]] // 2 == number[ends[1]] // 2}
        assert len(inside) == 16
        assert set(inside.values()) == {4}
        assert (sum(links.values()) - sum(inside.values())) / 2 == 24
        for device in topology.devices:
            assert sum(count for ends, count in links.items() if ends[0] == device) == 7

    def test_joins_hosts_by_rails(self):
        """The third device of each host has a NIC on the third rail, and no other route leads to another host."""
        topology = known_topology("4x8_h100")
        assert topology.neighbours("gpu:10") == ("host1.nvswitch", "host1.nic2")
        assert topology.neighbours("rail2") == tuple(f"host{host}.nic2" for host in range(4))
        assert Counter(topology.kinds.values()) == {"device": 32, "nic": 32, "switch": 4 + 8}

    def test_knows_small_shapes(self):
        assert known_topology("ring:1").links == ()
        assert len(known_topology("ring:2").links) == len(known_topology("line:2").links) == 2
        assert len(known_topology("line:8").links) == 14

    @pytest.mark.parametrize(
        ("name", "nearest"),
        [
            ("dgx-1_v100", "is 'dgx1_v100'"),
            ("H100", "is 'dgx_h100'"),
            ("2x8_h10", "is '2x8_h100'"),
            ("ring:0", "is 'ring:8'"),
            ("dgx1", "are 'dgx1_p100', 'dgx1_v100'"),  # no DGX-2, though one letter is all that differs
            ("DGX-1", "are 'dgx1_p100', 'dgx1_v100'"),
            ("mi300", "are 'mi300x', 'mi300x_raw'"),
            ("dgx", "are 'dgx1_p100', 'dgx1_v100', 'dgx2', 'dgx_a100'"),
        ],
    )
    def test_names_the_nearest_of_an_unknown_name(self, name, nearest):
        words = f"No machine is known as {name!r}. The nearest {nearest}. Known: dgx1_p100, dgx1_v100, "
        with pytest.raises(TopologyError, match=f"^{re.escape(words)}"):
            known_topology(name)

    @pytest.mark.parametrize("name", [8, "nosuch"])
    def test_names_none_where_none_is_near(self, name):
        with pytest.raises(TopologyError, match=rf"^No machine is known as {name!r}\. Known: dgx1_p100, "):
            known_topology(name)
