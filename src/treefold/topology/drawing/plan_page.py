"""A plan as one self-contained page, which plays it, prices it and prints it, and as one picture for a paper."""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from treefold.errors.words import bytes_in_words, counted, seconds_in_words
from treefold.plan import Movement
from treefold.topology.drawing.certificate import describe_bottleneck
from treefold.topology.drawing.charts import draw_sizes
from treefold.topology.drawing.machine_drawing import STYLE, draw_legend, machine_marks
from treefold.topology.drawing.machine_layout import lay_out
from treefold.topology.drawing.packs import DrawnPack, packs_of
from treefold.topology.drawing.page import Check, Figure, Page, PageTable, Section, for_screens, render_page
from treefold.topology.drawing.plan_player import describe_picture, draw_player
from treefold.topology.drawing.svg import drawing, element, text
from treefold.topology.drawing.timeline_drawing import timeline_marks
from treefold.topology.drawing.tree_drawing import tree_marks
from treefold.topology.graph import Topology
from treefold.topology.planning.tree_packing import TreePacking
from treefold.topology.timeline import Timeline

_WIDE = 960.0
_MARGIN, _LEGEND = 28.0, 40.0
_NARROWEST = 960.0


@dataclass(frozen=True)
class PlanStory:
    """The content of a plan's page.

    Attributes:
        title: The plan's time, in words.
        packing: The trees with the certificate that bounds every plan.
        movement: The plan that ``method`` makes.
        timeline: The timeline of the plan, scaled to the predicted time.
        times: (bytes, seconds) by method.
        tables: A table of times, and one of packs.
        words: The checks below the times, and the plan, both as printed.
        facts: The small print.

    """

    title: str
    topology: Topology
    packing: TreePacking
    movement: Movement
    timeline: Timeline
    times: Mapping[str, Sequence[tuple[float, float]]]
    tables: tuple[PageTable, PageTable]
    words: tuple[str, str]
    method: str
    checks: tuple[Check, ...]
    facts: tuple[tuple[str, str], ...]


def render_plan_page(story: PlanStory) -> str:
    """Return the page as one HTML document that loads nothing."""
    packing, topology = story.packing, story.topology
    packs = packs_of(story.movement)
    curves = functools.partial(
        draw_sizes, story.times, title="Predicted bandwidth by size", bound=packing.bound_bytes_per_s
    )
    has_one_size = len(next(iter(story.times.values()))) == 1
    sections = (
        Section(
            "The plan at work",
            describe_picture(story.timeline),
            drawing=draw_player(topology, packs, story.movement, story.timeline),
        ),
        Section(
            "Predicted",
            "Seconds of each method." if has_one_size else "Algorithm bandwidth: bytes per device over seconds.",
            for_screens(curves, wide=_WIDE),
            story.words[0],
            story.tables[0],
        ),
        Section(
            "In words",
            "As treefold plan prints it.",
            verbatim=story.words[1],
            table=story.tables[1],
            folded="The packs",
        ),
    )
    page = Page(
        title=story.title,
        summary=sentence(topology, packing),
        figures=_figures(story, len(packs)),
        checks=story.checks,
        sections=sections,
        facts=story.facts,
        is_picture_first=True,
    )
    return render_page(page)


def _figures(story: PlanStory, num_packs: int) -> tuple[Figure, ...]:
    packing, timeline = story.packing, story.timeline
    count, reached = len(packing.devices), timeline.algbw_bytes_per_s / 1e9
    is_whole = story.topology.missing is None
    bound = "no schedule of plain values exceeds it" + ("" if is_whole else " on the links in this file")
    return (
        (
            f"{bytes_in_words(timeline.nbytes)} per device",
            seconds_in_words(timeline.duration_s),
            f"by {story.method} in {counted(num_packs, 'pack')}, predicted",
        ),
        ("All-reduce, GB/s", f"{reached:.2f}", "of this plan: bytes over seconds"),
        ("Bound, GB/s", f"{packing.bound_bytes_per_s / 1e9:.2f}", bound),
        ("Bus bandwidth, GB/s", f"{reached * 2 * (count - 1) / count:.1f}", "as nccl-tests prints it"),
    )


def draw_packing(
    topology: Topology,
    packing: TreePacking,
    packs: Sequence[DrawnPack],
    timeline: Timeline | None = None,
    *,
    title: str = "",
) -> str:
    """Return the machine, the trees of a plan and, if given, its timeline, below each other as one SVG element.

    Args:
        topology: the machine.
        packing: the trees with the certificate that bounds every plan.
        packs: the packs of the plan.
        timeline: that of the plan.
        title: the headline; by default the bandwidth that the packing reaches.

    """
    layout = lay_out(topology)
    width = max(_NARROWEST, layout.width + 2 * _MARGIN)
    left = (width - layout.width) / 2
    title = title or headline(topology, packing)
    said = sentence(topology, packing)
    head, y = _head(title, said, width=width)
    machine = element("g", machine_marks(topology, layout), transform=f"translate({left:.1f} {y})")
    parts = [element("style", STYLE), *head, machine]
    y += layout.height
    parts.append(element("g", draw_legend(topology, y), transform=f"translate({left:.1f} 0)"))
    y += _LEGEND
    parts.append(_heading("Trees", "values climb to the root, are folded on the way, and results return", y))
    marks, y = tree_marks(topology, packs, width=width, top=y)
    parts.append(marks)
    if timeline is not None:
        words = f"{bytes_in_words(timeline.nbytes)} per device in {seconds_in_words(timeline.duration_s)}, predicted"
        parts.append(_heading("Links over time", words, y + 8))
        marks, y = timeline_marks(timeline, topology, width=width, top=y + 22)
        parts.append(marks)
    return drawing(parts, width=width, height=y + 8, title=title, description=f"{title}. {said}")


def headline(topology: Topology, packing: TreePacking) -> str:
    """Return the bandwidth that a packing reaches, in one line, and which links are missing from the machine."""
    name = topology.name or "this machine"
    if packing.algbw is None:
        return f"{name}: one device"
    reached, bound = packing.algbw_bytes_per_s / 1e9, packing.bound_bytes_per_s / 1e9
    if topology.missing is not None:
        return f"{name}: {reached:.2f} GB/s all-reduce over the links in this file; {topology.missing}"
    if packing.gap < 1e-6:  # noqa: PLR2004 - rounding
        return f"{name}: {reached:.2f} GB/s all-reduce, the most that plain values can reach"
    return f"{name}: {reached:.2f} of at most {bound:.2f} GB/s all-reduce ({1 - packing.gap:.1%})"


def sentence(topology: Topology, packing: TreePacking) -> str:
    """Return the bandwidth that a packing reaches and the bottleneck, in one line."""
    return f"{headline(topology, packing)}. Bottleneck: {describe_bottleneck(packing, topology)}."


def _head(title: str, said: str, *, width: float) -> tuple[list[str], float]:
    """Return the title and the sentence below it, broken into lines that fit, and their lower end."""
    parts, y = list[str](), 14.0
    for words, kind, size, character in ((title, "tf-strong", 19, 10.8), (said, "tf-quiet", 13, 7.2)):
        for line in textwrap.wrap(words, int((width - 2 * _MARGIN) / character)):
            y += 1.3 * size
            parts.append(text(line, _MARGIN, y, class_=kind, font_size=size))
        y += 6
    return parts, y + 12


def _heading(words: str, more: str, y: float) -> str:
    title = text(words, _MARGIN, y + 16, class_="tf-strong", font_size=15)
    return title + text(more, _MARGIN + 9.5 * len(words) + 10, y + 16, class_="tf-quiet", font_size=12)
