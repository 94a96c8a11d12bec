import itertools
import json
import re
import xml.etree.ElementTree as ET
from fractions import Fraction

import pytest

from treefold.planners.method import one_array
from treefold.planners.star import one_shot
from treefold.topology import TopologyBuilder, known_topology
from treefold.topology.drawing.certificate import describe_bottleneck, most_loaded, recomputed_bound
from treefold.topology.drawing.charts import draw_sizes
from treefold.topology.drawing.exports import write_trace
from treefold.topology.drawing.packs import DrawnPack, group_packs, packs_of
from treefold.topology.drawing.plan_page import draw_packing
from treefold.topology.drawing.timeline_drawing import draw_timeline
from treefold.topology.drawing.tree_drawing import draw_trees
from treefold.topology.planning.tree_packing import optimal_packing

NS = "{http://www.w3.org/2000/svg}"
MACHINES = ["dgx1_v100", "dgx_a100", "pcie3_8gpu", "2x8_a100", "ring:5"]


def marks(drawing, kind):
    root = ET.fromstring(drawing)  # noqa: S314 - our own text
    return [group for group in root.iter(f"{NS}g") if kind in group.get("class", "").split()]


class TestPacksOf:
    @pytest.mark.parametrize("name", MACHINES)
    def test_are_the_trees_that_were_planned(self, planned, name):
        one = planned(name)
        for pack, tree in zip(one.packs, one.packing.trees, strict=True):
            assert (pack.root, pack.depth, set(pack.pairs)) == (tree.root, tree.depth, set(tree.pairs))
            assert pack.share == pytest.approx(float(tree.share), abs=1e-6)

    def test_have_no_root_where_every_device_folds(self):
        (pack,) = packs_of(one_shot().movement(one_array(known_topology("mesh:3").devices)))
        assert (pack.root, pack.depth, len(pack.pairs)) == (None, 1, 6)


class TestGroupPacks:
    def test_takes_packs_together_that_differ_in_names_only(self):
        star, other = (DrawnPack(0.3, root, tuple((n, root) for n in "abc" if n != root)) for root in "ab")
        chain = DrawnPack(0.4, "a", (("c", "b"), ("b", "a")))
        groups = group_packs((star, chain, other), ["abc"])
        assert [group.numbers for group in groups] == [(0, 2), (1,)]
        assert [group.shares for group in groups] == ["30.0% each", "40.0%"]

    def test_keeps_apart_what_crosses_hosts_elsewhere(self):
        """A chain that changes hosts at its root is not one that changes them at its leaf."""
        one = DrawnPack(0.5, "a", (("c", "b"), ("b", "a")))
        two = DrawnPack(0.5, "c", (("a", "b"), ("b", "c")))
        assert len(group_packs((one, two), ["ab", "c"])) == 2
        assert len(group_packs((one, two), ["abc"])) == 1


class TestDrawTrees:
    def test_draws_a_tree_with_its_edges_and_its_root(self, planned):
        one = planned("dgx1_v100", packs=6)
        trees = marks(draw_trees(one.topology, one.packs), "tf-tree")
        assert sorted(int(n) for tree in trees for n in tree.get("data-packs").split(",")) == list(range(6))
        for drawn in trees:
            tree = one.packing.trees[int(drawn.get("data-pack"))]
            assert len(list(drawn.iter(f"{NS}polygon"))) == 7
            filled = [circle for circle in drawn.iter(f"{NS}circle") if "tf-fill" in circle.get("class")]
            assert len(filled) == 1
            assert f"root {tree.root}" in drawn.find(f"{NS}title").text

    def test_draws_equal_trees_once(self, planned):
        one = planned("mi300x", packs=8)
        (tree,) = marks(draw_trees(one.topology, one.packs), "tf-tree")
        assert [text.text for text in tree.iter(f"{NS}text")][:2] == ["8 packs: 100.0%", "depth 1"]

    def test_draws_the_largest_of_many(self, planned, monkeypatch):
        one = planned("dgx1_v100", packs=16)
        groups = group_packs(one.packs, [one.topology.devices])
        monkeypatch.setattr("treefold.topology.drawing.tree_drawing.MAX_TREES", 2)
        drawing = draw_trees(one.topology, one.packs)
        assert [int(tree.get("data-pack")) for tree in marks(drawing, "tf-tree")] == [g.numbers[0] for g in groups[:2]]
        assert f"{sum(len(group.packs) for group in groups[2:])} more trees" in drawing


class TestDrawTimeline:
    @pytest.mark.parametrize("name", MACHINES)
    def test_has_a_row_for_every_link_that_carries_something(self, planned, name):
        one = planned(name)
        rows = marks(draw_timeline(one.timeline, one.topology), "tf-row")
        assert len(rows) == min(len(one.timeline.links), 64)

    def test_says_how_much_of_a_link_was_used(self, planned):
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
        one = planned("ring:5")
        heads = [e for e in json.loads(write_trace(one.timeline, one.topology))["traceEvents"] if e["ph"] == "M"]
        names = {e["args"]["name"] for e in heads}
        assert {"links", "devices", "critical path", "gpu:0 → gpu:1 (25 GB/s)"} <= names


class TestDrawPacking:
    @pytest.mark.parametrize("name", MACHINES)
    def test_is_one_svg_of_machine_trees_and_timeline(self, planned, name):
        one = planned(name)
        drawing = draw_packing(one.topology, one.packing, one.packs, one.timeline)
        assert [len(marks(drawing, kind)) for kind in ("tf-machine", "tf-trees", "tf-timeline")] == [1, 1, 1]

    @pytest.mark.parametrize("name", ["mi250", "a100_pcie_8gpu", "ring:5"])
    def test_cuts_no_line_of_its_head(self, planned, name):
        one = planned(name)
        title = f"{name}, 8 GPUs, 1 GiB per GPU: 39.2 ms; NCCL-like rings: 39.3 ms. NVLinks are missing from this file."
        root = ET.fromstring(draw_packing(one.topology, one.packing, one.packs, title=title))  # noqa: S314
        sizes = {"19": 0.56, "13": 0.53}  # the mean width of a character, in sizes of the font
        lines = [text for text in root.findall(f"{NS}text") if text.get("font-size") in sizes]
        ends = [28 + len(line.text) * int(line.get("font-size")) * sizes[line.get("font-size")] for line in lines]
        assert len(lines) >= 3
        assert max(ends) <= float(root.get("viewBox").split()[2])
        assert " ".join(line.text for line in lines).startswith(title)

    def test_says_what_is_lost(self, planned):
        one = planned("dgx1_v100", packs=4)
        words = draw_packing(one.topology, one.packing, one.packs)
        reached = one.packing.algbw_bytes_per_s / 1e9
        assert f"dgx1_v100: {reached:.2f} of at most 85.71 GB/s all-reduce" in words


class TestDrawSizes:
    def test_has_a_curve_for_each_method_under_the_bound(self):
        times = {"a": [(4096.0, 1e-6), (2.0**20, 1e-5)], "<b>": [(4096.0, 2e-6), (2.0**20, 1e-4)]}
        drawing = draw_sizes(times, title="t", bound=200e9)
        assert len(marks(drawing, "tf-curve")) == 2
        assert "at most 200 GB/s" in drawing
        assert "a: 4 KiB in 1 µs, 1 MiB in 10 µs." in drawing
        assert "<b>" not in drawing

    def test_draws_bars_where_there_is_one_size(self):
        drawing = draw_sizes({"a": [(4096.0, 1e-6)], "b": [(4096.0, 2e-6)]}, title="t", bound=200e9)
        assert (len(marks(drawing, "tf-bar")), len(marks(drawing, "tf-curve"))) == (2, 0)
        assert ">2 µs</text>" in drawing

    @pytest.mark.parametrize("width", [344.0, 960.0])
    def test_stays_on_its_paper(self, width):
        times = {name: [(2.0**power, 1e-9 * 2**power) for power in range(12, 31, 2)] for name in ("trees", "x" * 30)}
        root = ET.fromstring(draw_sizes(times, title="t", width=width))  # noqa: S314 - our own text
        lines = {}
        for text in root.iter(f"{NS}text"):
            wide = 6.6 * len(text.text)
            left = float(text.get("x")) - {"end": wide, "middle": wide / 2}.get(text.get("text-anchor"), 0)
            lines.setdefault(text.get("y"), []).append((left, left + wide))
        for spans in map(sorted, lines.values()):
            assert spans[0][0] >= 0
            assert spans[-1][1] <= width
            assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))


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
        topology = known_topology(name)
        assert describe_bottleneck(optimal_packing(topology), topology) == words


class TestCertificate:
    @pytest.mark.parametrize("name", [*MACHINES, "mi250", "dgx2", "a100_pcie_8gpu"])
    def test_is_the_same_when_it_is_computed_again(self, name):
        topology = known_topology(name)
        packing = optimal_packing(topology)
        assert recomputed_bound(packing, topology) == packing.certificate.bound
        assert most_loaded(packing, topology) <= 1
        assert most_loaded(packing, topology) > Fraction(99, 100)

    def test_is_not_computed_where_directions_differ(self):
        builder = TopologyBuilder("pair").device("gpu:0").device("gpu:1")
        topology = builder.link("gpu:0", "gpu:1", gb_per_s=10, back_gb_per_s=5).build()
        assert recomputed_bound(optimal_packing(topology), topology) is None


def test_pages_have_no_links_to_elsewhere(planned):
    one = planned("ring:5")
    drawing = draw_packing(one.topology, one.packing, one.packs, one.timeline)
    assert not re.findall(r"(?:href|src|url)\s*[=(]", drawing)
