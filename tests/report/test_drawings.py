import re
import xml.etree.ElementTree as ET
from collections import Counter

import numpy as np
import pytest

from treefold import HierarchicalCopyAllReduce, NcclAllReduce, PerReplica, ReductionToOneDevice
from treefold.topology.drawing import svg
from treefold.topology.drawing.charts import Curve, draw_bars, draw_curves
from treefold.topology.drawing.plan_drawing import MAX_PACKS, draw_movement

NS = "{http://www.w3.org/2000/svg}"


def plan_for(ops, *, replicas, devices=None, leaves=3):
    value = PerReplica([[np.zeros(12, np.float32)] * leaves for _ in range(replicas)], devices=devices)
    return ops.plan(value, value, walked=True)


def drawn(plan):
    return draw_movement(plan, title=f"{plan.collective} by {plan.algorithm}")


def find(drawing, kind):
    root = ET.fromstring(drawing)  # noqa: S314 - our own text
    return [group for group in root.iter(f"{NS}g") if kind in group.get("class", "").split()]


PLANS = {
    f"{replicas} replicas, {ops!r}": plan_for(ops, replicas=replicas)
    for replicas in (1, 2, 3, 8, 16)
    for ops in (
        HierarchicalCopyAllReduce(),
        HierarchicalCopyAllReduce(num_packs=5),
        ReductionToOneDevice(),
        NcclAllReduce(num_packs=2),
    )
}
every_plan = pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS.keys())


class TestDrawMovement:
    @every_plan
    def test_has_one_lifeline_for_each_device(self, plan):
        names = [line.find(f"{NS}title").text for line in find(drawn(plan), "tf-lifeline")]
        assert names == list(dict.fromkeys(buffer.device for buffer in plan.buffers))

    @every_plan
    def test_has_one_arrow_for_each_copy_between_devices(self, plan):
        arrows = find(drawn(plan), "tf-copy")
        counts = Counter(arrow.find(f"{NS}title").text for arrow in arrows)
        assert counts == Counter(f"pack {hop.pack}: {hop.source} to {hop.target}" for hop in plan.hops)

    @every_plan
    def test_has_one_row_for_each_step(self, plan):
        assert len(find(drawn(plan), "tf-step")) == len(plan.steps)

    def test_marks_combinations_where_they_happen(self):
        """A two-level tree of 8 has three: one in each group, and the one that has every contribution."""
        marks = find(drawn(plan_for(HierarchicalCopyAllReduce(), replicas=8)), "tf-combine")
        words = sorted(mark.find(f"{NS}title").text for mark in marks)
        assert words == ["pack 0: combined", "pack 0: combined", "pack 0: combined, every contribution in"]

    def test_draws_the_first_packs_of_many_and_says_so(self):
        drawing = drawn(plan_for(ReductionToOneDevice(), replicas=3, leaves=11))
        packs = {arrow.find(f"{NS}title").text.partition(":")[0] for arrow in find(drawing, "tf-copy")}
        assert packs == {f"pack {number}" for number in range(MAX_PACKS)}
        assert "3 more packs not drawn." in drawing

    def test_names_the_packs_only_where_there_are_several(self):
        one, two = (plan_for(HierarchicalCopyAllReduce(num_packs=n), replicas=3) for n in (1, 2))
        assert ">pack 1</text>" in drawn(two)
        assert ">pack 0</text>" not in drawn(one)

    def test_puts_replicas_that_share_a_device_on_one_line(self):
        plan = plan_for(HierarchicalCopyAllReduce(), replicas=4, devices=["cpu:0", "cpu:0", "cpu:1", "cpu:1"])
        lines = find(drawn(plan), "tf-lifeline")
        texts = ["|".join(text.text for text in line.iter(f"{NS}text")) for line in lines]
        assert texts == ["cpu:0|replicas 0, 1", "cpu:1|replicas 2, 3"]

    def test_draws_a_plan_that_moves_nothing(self):
        value = PerReplica([np.zeros(0, np.float32)] * 2)
        drawing = drawn(HierarchicalCopyAllReduce().plan(value, value, walked=True))
        assert len(find(drawing, "tf-lifeline")) == 2

    def test_is_told_in_words(self):
        root = ET.fromstring(drawn(plan_for(HierarchicalCopyAllReduce(), replicas=3)))  # noqa: S314
        assert root.find(f"{NS}title").text == "all_reduce by HierarchicalCopyAllReduce(num_packs=1) on 3 devices"
        assert root.find(f"{NS}desc").text.startswith("3 devices, 1 pack, 8 steps, from top to bottom.")
        assert root.get("role") == "img"


class TestDrawCurves:
    def test_draws_each_curve_under_its_name(self):
        drawing = draw_curves([Curve("a<b", (2.0, 1.0), 0), Curve("c", (2.0, 0.5, 0.25), 1)], title="Loss")
        assert [curve.find(f"{NS}title").text for curve in find(drawing, "tf-curve")] == ["a<b", "c"]
        desc = ET.fromstring(drawing).find(f"{NS}desc").text  # noqa: S314
        assert desc == "3 steps. a<b: from 2 to 1; c: from 2 to 0.25."

    @pytest.mark.parametrize("values", [(1.0,), (0.5, 0.5), (0.0, 0.0), (1.0, 0.0), (1e-9, 1e9), (0.3,) * 5001])
    def test_stays_on_the_paper(self, values):
        root = ET.fromstring(draw_curves([Curve("x", values, 0)], title="x"))  # noqa: S314 - our own text
        width, height = map(float, root.get("viewBox").split()[2:])
        (line,) = root.iter(f"{NS}polyline")
        points = [tuple(map(float, point.split(","))) for point in line.get("points").split()]
        assert all(0 <= x <= width and 0 <= y <= height for x, y in points)
        assert 2 <= len(points) <= 2002

    def test_breaks_its_legend_on_narrow_paper(self):
        curves = [Curve(f"three devices, method {tone}", (2.0, 1.0), tone) for tone in range(3)]
        root = ET.fromstring(draw_curves(curves, title="Loss", width=344))  # noqa: S314 - our own text
        names = [text for text in root.iter(f"{NS}text") if text.text.startswith("three")]
        assert len({text.get("y") for text in names}) == 3
        assert max(float(text.get("y")) for text in names) < min(
            float(point.split(",")[1]) for line in root.iter(f"{NS}polyline") for point in line.get("points").split()
        )


class TestDrawBars:
    def test_is_as_long_as_it_takes(self):
        root = ET.fromstring(draw_bars({"one": 1e-3, "two": 2e-3}, title="t", width=344))  # noqa: S314 - our own text
        one, two = (bar.find(f"{NS}rect") for bar in root.iter(f"{NS}g"))
        assert float(two.get("width")) == pytest.approx(2 * float(one.get("width")), abs=0.11)
        assert float(two.get("x")) + float(two.get("width")) < 344 - 40
        assert [text.text for text in root.iter(f"{NS}text")] == ["one", "1 ms", "two", "2 ms"]


class TestTheme:
    @pytest.mark.parametrize(("tones", "paper"), [(svg.LIGHT, "#ffffff"), (svg.DARK, "#14181d")])
    def test_colours_are_legible_on_their_paper(self, tones, paper):
        assert min(_contrast(tone, paper) for tone in tones) >= 4.5

    @pytest.mark.parametrize("tones", [svg.LIGHT, svg.DARK])
    def test_tells_24_packs_apart(self, tones):
        assert len(tones) == len(set(tones)) == 24

    def test_keeps_text_legible_on_a_phone(self):
        """However narrow the screen, the smallest text, of 11 pixels, keeps 9; what does not fit is scrolled."""
        drawing = svg.drawing([], width=500.0, height=10.0, title="t", description="d")
        assert 'viewBox="0 0 500 10"' in drawing
        least = float(re.search(r"min-width:(\d+)px", drawing)[1])
        assert 11 * least / 500 >= 9

    def test_follows_the_reader(self):
        assert "@media(prefers-color-scheme:dark)" in svg.theme()
        assert "#ffffff" in svg.theme()
        assert "#14181d" in svg.theme()


def _contrast(one, other):
    """Return the contrast of two colours (WCAG 2.2, relative luminance)."""
    low, high = sorted(np.dot(_linear(colour), [0.2126, 0.7152, 0.0722]) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


def _linear(colour):
    """Return a colour's linear red, green and blue."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    return [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
