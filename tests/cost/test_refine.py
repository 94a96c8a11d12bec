"""Copies that were measured between devices replace the assumptions about the links that they crossed."""

import pytest

from treefold import optimal_packing
from treefold.errors import TopologyError
from treefold.planners.method import one_array
from treefold.planners.star import one_shot, star
from treefold.topology import TopologyBuilder, known_topology
from treefold.topology.cost import from_copies, refine, simulate


def two_sockets():
    """Return four GPUs on two sockets, as nobody measured them."""
    builder = TopologyBuilder("box").host("s0").host("s1").link("s0", "s1", gb_per_s=10, alpha_us=1)
    for number in range(4):
        name = f"gpu:{number}"
        builder.device(name).link(name, f"s{number // 2}", gb_per_s=12, alpha_us=2)
    return builder.build()


class TestRefine:
    def test_a_link_is_as_wide_as_the_quickest_copy_across_it(self):
        """Copies within a socket show the slots, copies between them what lies between."""
        within, across = (24e9, 4e-6), (18e9, 6e-6)
        measured = {
            (f"gpu:{a}", f"gpu:{b}"): within if a // 2 == b // 2 else across
            for a in range(4)
            for b in range(4)
            if a != b
        }
        machine = refine(two_sockets(), measured)
        assert machine.capacity("gpu:0", "s0") == 24_000_000_000
        assert machine.capacity("s1", "s0") == 18_000_000_000
        assert machine.alphas["gpu:0", "s0"] == pytest.approx(2e-6)
        assert machine.notes[-1] == "10 of 10 directed links are as measured between devices."
        assert optimal_packing(machine).algbw_bytes_per_s > optimal_packing(two_sockets()).algbw_bytes_per_s

    def test_the_ways_of_a_link_may_differ(self):
        machine = refine(
            TopologyBuilder("pair").device("gpu:0").device("gpu:1").link("gpu:0", "gpu:1", gb_per_s=25).build(),
            {("cuda:0", "gpu:1"): (20e9, 1e-6), ("gpu:1", "gpu:0"): (15e9, 2e-6)},
        )
        assert (machine.capacity("gpu:0", "gpu:1"), machine.capacity("gpu:1", "gpu:0")) == (20e9, 15e9)

    def test_what_no_copy_crossed_stays(self):
        """And pairs with several ways say nothing of any one of them."""
        machine = refine(two_sockets(), {("gpu:0", "gpu:1"): (24e9, 4e-6)})
        assert machine.capacity("s0", "s1") == 10_000_000_000
        assert machine.notes[-1] == "2 of 10 directed links are as measured between devices."
        builder = TopologyBuilder("two ways").switch("a").switch("b").device("gpu:0").device("gpu:1")
        for switch in ("a", "b"):
            builder.link("gpu:0", switch, gb_per_s=5).link("gpu:1", switch, gb_per_s=5)
        assert refine(builder.build(), {("gpu:0", "gpu:1"): (10e9, 0.0)}).capacity("gpu:0", "a") == 5_000_000_000

    def test_copies_through_a_third_device_say_nothing_of_its_links(self):
        """Whether that device hands bytes on is not known."""
        machine = refine(known_topology("line:3"), {("gpu:0", "gpu:2"): (99e9, 1e-6)})
        assert machine.capacities == known_topology("line:3").capacities
        assert machine.notes[-1] == "0 of 4 directed links are as measured between devices."

    def test_devices_that_are_not_there(self):
        with pytest.raises(TopologyError, match=r"^There is no gpu:9 in this topology\."):
            refine(two_sockets(), {("gpu:0", "gpu:9"): (1e9, 0.0)})


class TestFromCopies:
    MEASURED = {  # noqa: RUF012 - never written to
        ("gpu:0", "gpu:1"): (24e9, 2e-6),
        ("gpu:1", "gpu:0"): (20e9, 2e-6),
        ("gpu:0", "gpu:2"): (6e9, 9e-6),
        ("gpu:2", "gpu:0"): (6e9, 9e-6),
        ("gpu:1", "gpu:2"): (12e9, 5e-6),
        ("gpu:2", "gpu:1"): (10e9, 5e-6),
    }

    def test_a_copy_alone_takes_what_was_measured(self):
        for a, b in (("gpu:0", "gpu:1"), ("gpu:2", "gpu:1")):
            machine = from_copies(["gpu:0", "gpu:1", "gpu:2"], self.MEASURED)
            pair = machine.restricted([a, b])
            line = simulate(star(b).movement(one_array([b, a])), pair, 12e9, chunk_bytes=None, launch_s=0)
            there, back = self.MEASURED[a, b], self.MEASURED[b, a]
            assert line.duration_s == pytest.approx(12e9 / there[0] + there[1] + 12e9 / back[0] + back[1])

    def test_copies_at_once_share_the_port(self):
        """Of the device that sends both, as wide as its quickest copy: neither is hindered until it is full."""
        machine = from_copies(["gpu:0", "gpu:1", "gpu:2"], self.MEASURED)
        assert machine.capacity("gpu:0", "out of gpu:0") == 24e9
        assert machine.capacity("into gpu:2", "gpu:2") == 12e9
        alike = dict.fromkeys(self.MEASURED, (10e9, 0.0))
        movement = one_shot().movement(one_array(["gpu:0", "gpu:1", "gpu:2"]))
        machine = from_copies(["gpu:0", "gpu:1", "gpu:2"], alike)
        assert simulate(movement, machine, 10e9, chunk_bytes=None, launch_s=0).duration_s == pytest.approx(2.0)

    def test_no_way_leads_through_the_port_of_a_third(self):
        """A slow pair stays slow: packets are not passed on by a device that has no part in the copy."""
        machine = from_copies(["gpu:0", "gpu:1", "gpu:2"], self.MEASURED)
        assert "out of gpu:1" not in machine.neighbours("into gpu:1")
        assert optimal_packing(machine.restricted(["gpu:0", "gpu:2"])).algbw_bytes_per_s == pytest.approx(6e9)
