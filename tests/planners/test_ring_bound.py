"""The bound on the number of rings, at which the search for them stops."""

import itertools
import random
import sys

import pytest

from treefold.topology import TopologyBuilder, known_topology
from treefold.topology.graph import reached_from
from treefold.topology.planning.ring import pack_rings
from treefold.topology.planning.ring_bound import most_fractional_rings, most_rings
from treefold.topology.planning.ring_search import shortest_hops

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


def bounds(machine):
    """Return the bound by groups, and that of the linear program, on rings as wide as the narrowest link."""
    hops = shortest_hops(machine)
    used = {link for route in hops.values() for link in itertools.pairwise(route)}
    width = min(machine.capacities[link] for link in used)
    slots = {link: int(machine.capacities[link] // width) for link in used}
    return most_rings(machine, slots), most_fractional_rings(machine, hops, slots)


class TestMostFractionalRings:
    @pytest.mark.parametrize("joints", [1, 2, 3])
    def test_sees_groups_that_few_links_join(self, joints):
        """Every ring leaves a group over one link and comes back over another, and no link is wider than the others."""
        assert bounds(joined_meshes(joints))[1] == (joints if joints > 1 else 0)

    @pytest.mark.parametrize("joints", [1, 2, 3])
    def test_by_groups_sees_the_links_between_wider_ones(self, joints):
        """Devices that wider links join are a group, and few links leave it."""
        machine = joined_meshes(joints, within=2)
        assert bounds(machine)[0] == joints

    @pytest.mark.parametrize("is_turned", [False, True])
    def test_by_groups_goes_by_the_narrower_direction(self, is_turned):
        """Out of a group or into it, whichever has fewer slots: three devices, one of which is left only twice."""
        machine = known_topology("mesh:3")
        slots = {(a, b): 2 if a == "gpu:0" else 8 for a, b in itertools.permutations(machine.devices, 2)}
        slots["gpu:0", "gpu:2"] = 0
        assert most_rings(machine, {ends[::-1] if is_turned else ends: count for ends, count in slots.items()}) == 2

    @pytest.mark.parametrize("seed", range(20))
    def test_by_groups_looks_at_the_groups_of_every_width(self, seed):
        """Of links that all have widths of their own, as measured ones have: no group has a narrower cut."""
        rng = random.Random(seed)  # noqa: S311 - cases, no secrets
        builder = TopologyBuilder("measured")
        for number in range(6):
            builder.device(f"gpu:{number}")
        for a, b in itertools.combinations(range(6), 2):
            there, back = rng.sample(range(1, 1000), 2)
            builder.link(f"gpu:{a}", f"gpu:{b}", gb_per_s=there, back_gb_per_s=back)
        machine = builder.build()
        slots = {ends: rng.randrange(1, 8) for ends in machine.capacities}
        least = 32
        for width, device in itertools.product([0, *machine.capacities.values()], machine.devices):
            group = reached_from(
                [device],
                lambda here, width=width: [
                    there
                    for there in machine.neighbours(here)
                    if min(machine.capacity(here, there), machine.capacity(there, here)) > width
                ],
            )
            if len(group) < len(machine.devices):
                out = sum(count for (a, b), count in slots.items() if a in group and b not in group)
                into = sum(count for (a, b), count in slots.items() if b in group and a not in group)
                least = min(least, out, into)
        assert most_rings(machine, slots) == least

    def test_is_nothing_for_one_device(self):
        """It has no links: its ring is itself, and carries nothing."""
        packing = pack_rings(known_topology("mesh:3").restricted(("gpu:1",)))
        assert (packing.orders, packing.total) == ((("gpu:1",),), 0)

    @pytest.mark.parametrize("joints", [2, 3])
    def test_is_what_the_search_finds(self, joints):
        """It is a proof, then: there are no more rings of this width."""
        assert len(pack_rings(joined_meshes(joints)).orders) == joints

    def test_sees_that_a_ring_crosses_a_pair_once(self):
        """Forty lanes from the first to the second are worth one ring each, in one of the directions."""
        builder = TopologyBuilder("a wide pair")
        for number in range(3):
            builder.device(f"gpu:{number}")
        for (a, b), gb_per_s in {(0, 1): 40, (1, 2): 2, (2, 0): 1}.items():
            builder.link(f"gpu:{a}", f"gpu:{b}", gb_per_s=gb_per_s, kind="nvlink")
        by_groups, by_program = bounds(builder.build())
        assert (by_groups, by_program) == (3, 2)

    @pytest.mark.parametrize(
        "name",
        [
            "ring:2",
            "ring:5",
            "mesh:8",
            "dgx1_p100",
            "dgx1_v100",
            "p3_8xlarge",
            "mi250",
            "dgx2",
            "pcie3_8gpu",
            "2x8_h100",
        ],
    )
    def test_is_never_less_than_what_fits(self, name):
        """The rings that were found are a solution of the program."""
        machine = known_topology(name)
        packing = pack_rings(machine)
        slots = {link: int(width // packing.bytes_per_s) for link, width in machine.capacities.items()}
        assert most_fractional_rings(machine, shortest_hops(machine), slots) >= len(packing.orders)

    def test_is_not_needed(self, monkeypatch):
        """Without SciPy the search goes on for longer and finds as many rings."""
        monkeypatch.setitem(sys.modules, "scipy.optimize", None)
        machine = joined_meshes(2)
        assert len(pack_rings(machine).orders) == 2
        assert bounds(machine)[1] >= bounds(machine)[0]
