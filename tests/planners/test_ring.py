"""The search for rings, and where it stops."""

import itertools
import sys

import pytest

from treefold.topology import TopologyBuilder, known_topology
from treefold.topology.planning import ring
from treefold.topology.planning.ring import most_rings, pack_rings

GB_PER_S = 25


def joined_meshes(joints, within=1):
    """Return two groups of four devices, all joined ``within`` times, and ``joints`` links from one to the other."""
    builder = TopologyBuilder("two meshes")
    for number in range(8):
        builder.device(f"gpu:{number}")
    pairs = [(a + group, b + group) for group in (0, 4) for a, b in itertools.combinations(range(4), 2)]
    for a, b in [*pairs * within, *((device, device + 4) for device in range(joints))]:
        builder.link(f"gpu:{a}", f"gpu:{b}", gb_per_s=GB_PER_S, kind="nvlink")
    return builder.build()


class TestMostRings:
    @pytest.mark.parametrize("is_turned", [False, True])
    def test_goes_by_the_narrower_direction(self, is_turned):
        """Out of a device or into it, whichever has fewer slots: three devices, one of which is left only twice."""
        devices = known_topology("mesh:3").devices
        slots = {(a, b): 2 if a == "gpu:0" else 8 for a, b in itertools.permutations(devices, 2)}
        slots["gpu:0", "gpu:2"] = 0
        assert most_rings(devices, {ends[::-1] if is_turned else ends: count for ends, count in slots.items()}) == 2

    def test_is_no_more_than_nccl_opens(self):
        assert most_rings(("a", "b"), {("a", "b"): 99, ("b", "a"): 99}) == 32


class TestPackRings:
    def test_finds_nothing_for_one_device(self):
        packing = pack_rings(known_topology("mesh:3").restricted(("gpu:1",)))
        assert (packing.orders, packing.total, packing.predict_s(2**20)) == ((("gpu:1",),), 0, 0)

    @pytest.mark.parametrize("joints", [2, 3])
    def test_finds_all_that_few_links_between_groups_leave(self, joints):
        """Every ring leaves a group over one link and comes back over another; a search that finds no more ends."""
        assert len(pack_rings(joined_meshes(joints)).orders) == joints

    @pytest.mark.parametrize("joints", [2, 3])
    def test_finds_them_where_links_within_are_wider(self, joints):
        """Rings are as wide as the links between the groups."""
        packing = pack_rings(joined_meshes(joints, within=2))
        assert float(packing.total) >= joints * GB_PER_S * 1e9

    def test_stops_where_a_host_has_no_port_left(self, monkeypatch):
        """Eight rails of two hosts are eight rings: that there are no more is seen from the hosts' own links."""
        attempts = []
        empty = ring._Room.empty
        monkeypatch.setattr(ring._Room, "empty", lambda room, *rest: attempts.append(1) or empty(room, *rest))
        assert len(pack_rings(known_topology("2x8_h100")).orders) == 8
        assert len(attempts) < 10

    def test_needs_no_solver(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "scipy.optimize", None)
        assert len(pack_rings(joined_meshes(2)).orders) == 2
