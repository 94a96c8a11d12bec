import json
import re
import xml.etree.ElementTree as ET
from fractions import Fraction

import pytest

from treefold.planners.tree_packing import optimal_packing
from treefold.report.bottleneck import describe_bottleneck
from treefold.report.certificate import most_loaded, recomputed_bound
from treefold.report.machine_layout import lay_out
from treefold.report.plan_picture import draw_packing
from treefold.report.png import render_png, with_plain_colours
from treefold.report.size_drawing import draw_sizes
from treefold.report.timeline_drawing import draw_timeline
from treefold.report.trace import write_trace
from treefold.report.tree_drawing import MAX_TREES, draw_trees
from treefold.topology import TopologyBuilder, known_topology

NS = "{http://www.w3.org/2000/svg}"
MACHINES = ["dgx1_v100", "dgx_a100", "pcie3_8gpu", "2x8_a100", "ring:5"]


def marks(drawing, kind):
    """Return the groups of a class."""
    root = ET.fromstring(drawing)  # noqa: S314 - our own text
    return [group for group in root.iter(f"{NS}g") if kind in group.get("class", "").split()]


class TestDrawTrees:
    def test_draws_every_tree_with_its_edges_and_its_root(self, planned):
        """A picture per pack: n − 1 arrows, and one dot that is filled."""
        one = planned("dgx1_v100", packs=6)
        trees = marks(draw_trees(one.topology, lay_out(one.topology), one.packing), "tf-tree")
        assert [tree.get("data-pack") for tree in trees] == [str(n) for n in range(6)]
        for tree, drawn in zip(one.packing.trees, trees, strict=True):
            assert len(list(drawn.iter(f"{NS}polygon"))) == 7
            filled = [circle for circle in drawn.iter(f"{NS}circle") if "tf-fill" in circle.get("class")]
            assert len(filled) == 1
            assert f"root {tree.root}" in drawn.find(f"{NS}title").text

    def test_draws_the_largest_of_many(self, planned):
        """Of thirty packs some are left out, and that is said."""
        one = planned("ring:5", packs=30)
        drawing = draw_trees(one.topology, lay_out(one.topology), one.packing)
        assert len(marks(drawing, "tf-tree")) == MAX_TREES
        assert f"{30 - MAX_TREES} more trees" in drawing


class TestDrawTimeline:
    @pytest.mark.parametrize("name", MACHINES)
    def test_has_a_row_for_every_link_that_carries_something(self, planned, name):
        """Or for as many as fit, the busiest, and the others are counted."""
        one = planned(name)
        rows = marks(draw_timeline(one.timeline, one.topology), "tf-row")
        assert len(rows) == min(len(one.timeline.links), 64)

    def test_says_how_much_of_a_link_was_used(self, planned):
        """Bytes over width and time, in words."""
        one = planned("ring:5", packs=5)
        title = marks(draw_timeline(one.timeline, one.topology), "tf-row")[0].find(f"{NS}title").text
        use = one.timeline.links["gpu:0", "gpu:1"].nbytes / 25e9 / one.timeline.duration_s
        assert title == f"gpu:0 → gpu:1, 25 GB/s: {use:.1%} of what it could carry"


class TestWriteTrace:
    @pytest.mark.parametrize("name", MACHINES)
    def test_has_every_chunk_on_every_link_it_crosses(self, planned, name):
        """In microseconds, with the bytes of the chunk; nothing overlaps on a track."""
        one = planned(name)
        events = [e for e in json.loads(write_trace(one.timeline, one.topology))["traceEvents"] if e["ph"] == "X"]
        chunks = [e for e in events if e["pid"] == 1]
        assert len(chunks) == sum(len(a.spans) * len(a.links) for a in one.timeline.activities)
        assert sum(e["args"]["bytes"] for e in chunks) == pytest.approx(
            sum(use.nbytes for use in one.timeline.links.values())
        )
        ends = {}
        for event in sorted(events, key=lambda e: (e["pid"], e["tid"], e["ts"])):
            track = event["pid"], event["tid"]
            assert event["ts"] >= ends.get(track, 0.0) - 2e-4
            ends[track] = event["ts"] + event["dur"]
        assert max(ends.values()) == pytest.approx(one.timeline.duration_s * 1e6, abs=1e-3)

    def test_names_its_tracks(self, planned):
        """Links by their ends and widths; the critical path has one of its own."""
        one = planned("ring:5")
        heads = [e for e in json.loads(write_trace(one.timeline, one.topology))["traceEvents"] if e["ph"] == "M"]
        names = {e["args"]["name"] for e in heads}
        assert {"links", "devices", "critical path", "gpu:0 → gpu:1 (25 GB/s)"} <= names


class TestDrawPacking:
    @pytest.mark.parametrize("name", MACHINES)
    def test_is_one_svg_of_machine_trees_and_timeline(self, planned, name):
        """All three, once each."""
        one = planned(name)
        drawing = draw_packing(one.topology, one.packing, one.timeline)
        assert [len(marks(drawing, kind)) for kind in ("tf-machine", "tf-trees", "tf-timeline")] == [1, 1, 1]

    def test_says_what_is_lost(self, planned):
        """Four packs of a DGX-1 reach less than the optimum, and the headline says how much."""
        one = planned("dgx1_v100", packs=4)
        words = draw_packing(one.topology, one.packing)
        reached = one.packing.algbw_bytes_per_s / 1e9
        assert f"dgx1_v100: {reached:.2f} of at most 85.71 GB/s all-reduce" in words


class TestRenderPng:
    def test_draws_in_colours_that_any_program_knows(self, planned):
        """No variables are left, and the pixels are many and not all alike."""
        one = planned("dgx1_v100")
        svg = draw_packing(one.topology, one.packing)
        plain = with_plain_colours(svg)
        assert "var(" not in plain
        assert "prefers-color-scheme" not in plain
        data = render_png(svg, zoom=1)
        assert data.startswith(b"\x89PNG\r\n")
        assert len(data) > 20_000


class TestDrawSizes:
    def test_has_a_curve_for_each_method_under_the_bound(self):
        """Two curves, one dashed line, and every point in words."""
        times = {"a": [(4096.0, 1e-6), (2.0**20, 1e-5)], "<b>": [(4096.0, 2e-6), (2.0**20, 1e-4)]}
        drawing = draw_sizes(times, title="t", bound=200e9)
        assert len(marks(drawing, "tf-curve")) == 2
        assert "at most 200 GB/s" in drawing
        assert "a: 4 KiB in 1 µs, 1 MiB in 10 µs." in drawing
        assert "<b>" not in drawing


class TestDescribeBottleneck:
    @pytest.mark.parametrize(
        ("name", "words"),
        [
            ("a100_pcie_8gpu", "GPUs 0–3 against 4–7: 16 GB/s between sockets"),
            ("dgx1_v100", "each of 8 GPUs against the others: 600 GB/s over NVLink in all"),
            ("dgx_a100", "each of 8 GPUs against the others: 300 GB/s per link over NVLink"),
            ("mi250", "GPUs 0–1 against 2–3 against 4–5 against 6–7 … (8 groups): 1200 GB/s over xGMI in all"),
            (
                "2x8_a100",
                "each of 16 GPUs against the others: 300 GB/s per link over NVLink and 25 GB/s per link between hosts",
            ),
            ("ring:1", "none: one device has nothing to send"),
        ],
    )
    def test_says_who_is_held_apart_by_what(self, name, words):
        """The groups of the certificate, the width between them, and where it is."""
        topology = known_topology(name)
        assert describe_bottleneck(optimal_packing(topology), topology) == words


class TestCertificate:
    @pytest.mark.parametrize("name", [*MACHINES, "mi250", "dgx2", "a100_pcie_8gpu"])
    def test_is_the_same_when_it_is_computed_again(self, name):
        """Exactly: whole prices, exact capacities; and no link carries more than it can."""
        topology = known_topology(name)
        packing = optimal_packing(topology)
        assert recomputed_bound(packing, topology) == packing.certificate.bound
        assert most_loaded(packing, topology) <= 1
        assert most_loaded(packing, topology) > Fraction(99, 100)

    def test_is_not_computed_where_directions_differ(self):
        """There the bound is that of trees up and down apart."""
        builder = TopologyBuilder("pair").device("gpu:0").device("gpu:1")
        topology = builder.link("gpu:0", "gpu:1", gb_per_s=10, back_gb_per_s=5).build()
        assert recomputed_bound(optimal_packing(topology), topology) is None


def test_pages_have_no_links_to_elsewhere(planned):
    """What is drawn is all there is: nothing is loaded."""
    one = planned("ring:5")
    drawing = draw_packing(one.topology, one.packing, one.timeline)
    assert not re.findall(r"(?:href|src|url)\s*[=(]", drawing)
