import itertools
import xml.etree.ElementTree as ET

import pytest

from treefold.topology import TopologyBuilder, known_names, known_topology
from treefold.topology.drawing.machine_drawing import draw_machine, legend_in_words, thickness
from treefold.topology.drawing.machine_layout import lay_out
from treefold.topology.drawing.svg import NARROWEST

NS = "{http://www.w3.org/2000/svg}"
NAMES = known_names()
PAGE = 1040  # what a window of 1280 pixels leaves a drawing
every_machine = pytest.mark.parametrize("name", NAMES)


def overlap(one, other):
    apart = abs(one.x - other.x) * 2 < one.width + other.width - 0.01
    return apart and abs(one.y - other.y) * 2 < one.height + other.height - 0.01


class TestLayOut:
    @pytest.mark.parametrize("name", [*NAMES, "ring:1", "line:64", "16x8_h100"])
    def test_boxes_do_not_hide_each_other(self, name):
        layout = lay_out(known_topology(name))
        boxes = list(layout.boxes.values())
        assert not [pair for pair in itertools.combinations(boxes, 2) if overlap(*pair)]
        assert all(box.left >= 0 and box.right <= layout.width for box in boxes)
        assert all(box.top >= 0 and box.bottom <= layout.height for box in boxes)

    @every_machine
    def test_draws_every_node_and_every_link_once(self, name):
        topology = known_topology(name)
        layout = lay_out(topology)
        assert list(layout.boxes) == list(topology.kinds)
        pairs = {frozenset(pair) for pair in topology.capacities}
        assert {frozenset(pair) for pair in layout.lines} == pairs
        assert len(layout.lines) == len(pairs)

    def test_stands_layers_above_each_other(self):
        builder = TopologyBuilder("layers").host("cpu0").host("cpu1").switch("pci0").switch("pci1").switch("nvswitch")
        builder.link("cpu0", "cpu1", gb_per_s=20).link("cpu0", "pci0", gb_per_s=16).link("cpu1", "pci1", gb_per_s=16)
        for number in range(4):
            builder.device(f"gpu:{number}").link(f"gpu:{number}", f"pci{number // 2}", gb_per_s=16)
            builder.link(f"gpu:{number}", "nvswitch", gb_per_s=300)
        boxes = lay_out(builder.build()).boxes
        assert boxes["cpu0"].y == boxes["cpu1"].y < boxes["pci0"].y == boxes["pci1"].y < boxes["gpu:0"].y
        assert boxes["gpu:0"].y == boxes["gpu:3"].y < boxes["nvswitch"].y

    def test_bends_a_line_around_what_stands_between(self):
        builder = TopologyBuilder("bent").switch("bus")
        for number in range(4):
            builder.device(f"gpu:{number}").link(f"gpu:{number}", "bus", gb_per_s=6)
        layout = lay_out(builder.link("gpu:0", "gpu:3", gb_per_s=25).link("gpu:0", "gpu:1", gb_per_s=25).build())
        curve, straight = layout.lines["gpu:0", "gpu:3"], layout.lines["gpu:0", "gpu:1"]
        assert (len(curve), len(straight)) == (4, 2)
        assert layout.boxes["gpu:1"].bottom < curve[1][1] < layout.height

    def test_frames_hosts_and_wires_them_to_rails_below(self):
        """A frame per host; a NIC's wire ends on its rail's box, which stands under all hosts."""
        topology = known_topology("2x8_a100")
        layout = lay_out(topology)
        assert list(layout.frames) == ["host 0", "host 1"]
        for number in range(8):
            rail = layout.boxes[f"rail{number}"]
            assert rail.top > max(frame.bottom for frame in layout.frames.values())
            for nic in topology.neighbours(f"rail{number}"):
                wire = layout.lines[f"rail{number}", nic][::-1]
                assert wire[0] == (layout.boxes[nic].x, layout.boxes[nic].bottom)
                assert wire[-1] == (rail.x, rail.top)

    def test_stands_a_spine_below_its_leaves(self):
        """Switches that no NIC is joined to stand under those that they join, also where there is one host."""
        builder = TopologyBuilder("spine").switch("leaf0").switch("leaf1").switch("spine")
        for number in range(2):
            nic = f"nic {number}"
            builder.device(f"gpu:{number}").nic(nic).link(f"gpu:{number}", nic, gb_per_s=25)
            builder.link(nic, f"leaf{number}", gb_per_s=25).link(f"leaf{number}", "spine", gb_per_s=25)
        apart = lay_out(builder.build())
        joined = lay_out(builder.link("gpu:0", "gpu:1", gb_per_s=50).build())
        assert (len(apart.frames), len(joined.frames)) == (2, 0)
        for layout in (apart, joined):
            boxes = layout.boxes
            assert boxes["nic 0"].bottom < boxes["leaf0"].top == boxes["leaf1"].top
            assert boxes["leaf0"].bottom < boxes["spine"].top
            assert not [pair for pair in itertools.combinations(boxes.values(), 2) if overlap(*pair)]

    def test_stands_what_joins_hosts_above_them(self):
        """A switch between sockets is no switch of one of them."""
        builder = TopologyBuilder("sockets").switch("between sockets").host("cpu0").host("cpu1")
        for number in range(2):
            builder.device(f"gpu:{number}").link(f"gpu:{number}", f"cpu{number}", gb_per_s=12)
            builder.link(f"cpu{number}", "between sockets", gb_per_s=10)
        boxes = lay_out(builder.build()).boxes
        assert boxes["between sockets"].bottom < boxes["cpu0"].top == boxes["cpu1"].top

    @pytest.mark.parametrize("name", [*NAMES, "3x8_a100", "16x8_h100", "line:16", "line:64", "ring:128", "mesh:32"])
    def test_is_no_wider_than_a_screen(self, name):
        """On a page of 1280 pixels all of it is seen at once, its words of 11 pixels at 9 or more."""
        assert lay_out(known_topology(name)).width * NARROWEST <= PAGE + 8

    @pytest.mark.parametrize("name", ["3x8_a100", "4x8_h100", "8x8_h100", "2x16_mi250", "16x8_h100"])
    def test_leads_wires_around_hosts(self, name):
        topology = known_topology(name)
        layout = lay_out(topology)
        for ends, line in layout.lines.items():
            if {topology.kinds[end] for end in ends} != {"nic", "switch"}:
                continue
            corners = line if topology.kinds[ends[0]] == "nic" else line[::-1]
            for start, stop in itertools.pairwise(corners[1:]):
                left, right = sorted((start[0], stop[0]))
                top, bottom = sorted((start[1], stop[1]))
                for frame in layout.frames.values():
                    assert right < frame.left or left > frame.right or bottom < frame.top or top > frame.bottom


class TestDrawMachine:
    @every_machine
    def test_is_an_svg_told_in_words(self, name):
        topology = known_topology(name)
        root = ET.fromstring(draw_machine(topology))  # noqa: S314 - our own text
        assert root.find(f"{NS}title").text == f"{name}: {len(topology.devices)} devices"
        assert [g.get("data-name") for g in root.iter(f"{NS}g") if g.get("data-name")] == list(topology.kinds)

    def test_links_are_as_thick_as_they_are_wide(self):
        topology = known_topology("dgx1_v100")
        wide, narrow = topology.capacity("gpu:0", "gpu:3"), topology.capacity("gpu:0", "gpu:1")
        assert thickness(topology, wide) == 2 * thickness(topology, narrow)

    def test_says_both_widths_of_a_link_that_differs(self):
        builder = TopologyBuilder("pair").device("gpu:0").device("gpu:1")
        text = draw_machine(builder.link("gpu:0", "gpu:1", gb_per_s=10, back_gb_per_s=5, kind="pcie").build())
        assert "gpu:0 to gpu:1: 10 GB/s, back 5 GB/s pcie" in text

    def test_says_its_legend_in_words(self):
        words = "Links are drawn as thick as they are wide: 25 GB/s, 50 GB/s per direction."
        assert legend_in_words(known_topology("dgx1_v100")) == words

    def test_escapes_names(self):
        builder = TopologyBuilder("<b>").device("gpu:0").switch("<script>")
        text = draw_machine(builder.link("gpu:0", "<script>", gb_per_s=1).build())
        assert "<script>" not in text
        assert "<b>" not in text
