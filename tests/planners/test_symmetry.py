import itertools

import pytest

from treefold import known_topology
from treefold.topology import TopologyBuilder
from treefold.topology.planning.tree_packing.symmetry import all_images, find_shifts

ORDERS = {"2x8_h100": [2, 8], "4x8_h100": [4, 8], "3x8_h100": [3, 8], "2x16_mi250": [], "dgx1_v100": []}


def hosts_with_bridged_devices(num_bridges):
    """Return three hosts of two devices, each device this many carriers from its host's switch, and a switch of all."""
    builder = TopologyBuilder()
    devices = [[f"gpu:{2 * host + place}" for place in range(2)] for host in range(3)]
    for device in itertools.chain(*devices):
        builder.device(device)
    builder.switch("spine")
    for host, own in enumerate(devices):
        builder.switch(f"switch{host}")
        builder.link(f"switch{host}", "spine", gb_per_s=25)
        for place, device in enumerate(own):
            near = device
            for number in range(num_bridges):
                bridge = f"bridge{host}.{place}.{number}"
                builder.switch(bridge)
                builder.link(near, bridge, gb_per_s=100)
                near = bridge
            builder.link(near, f"switch{host}", gb_per_s=100)
    return builder.build()


class TestShifts:
    @pytest.mark.parametrize(("name", "orders"), ORDERS.items())
    def test_go_from_host_to_host_and_within_hosts(self, name, orders):
        assert [shift.order for shift in find_shifts(known_topology(name))] == orders

    @pytest.mark.parametrize("name", ["2x8_h100", "4x8_h100", "3x8_h100"])
    def test_are_back_after_their_order_and_not_before(self, name):
        """So that the images of one tree are counted once each."""
        topology = known_topology(name)
        for shift in find_shifts(topology):
            names = dict(shift.names)
            for _ in range(shift.order - 1):
                assert all(names[device] != device for device in topology.devices)
                names = {name: shift.names[now] for name, now in names.items()}
            assert all(names[node.name] == node.name for node in topology.nodes)

    def test_carry_a_device_to_every_other_once(self):
        topology = known_topology("3x8_h100")
        images = all_images(topology, find_shifts(topology))
        for device in topology.devices:
            assert sorted(names[device] for names in images) == sorted(topology.devices)

    @pytest.mark.parametrize("num_bridges", [0, 1, 2])
    def test_see_devices_behind_what_only_joins_two(self, num_bridges):
        assert [shift.order for shift in find_shifts(hosts_with_bridged_devices(num_bridges))] == [3, 2]
