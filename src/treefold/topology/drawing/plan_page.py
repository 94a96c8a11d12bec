"""One self-contained page about a plan: what it takes and why no other reaches more, playing, priced, in words."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from treefold.errors.words import bytes_in_words, counted, seconds_in_words
from treefold.plan import Movement
from treefold.topology.drawing.packs import packs_of
from treefold.topology.drawing.page import Check, Figure, Page, Section, Table, for_screens, render_page
from treefold.topology.drawing.plan_picture import sentence
from treefold.topology.drawing.plan_player import describe_picture, draw_player
from treefold.topology.drawing.size_drawing import draw_sizes
from treefold.topology.graph import Topology
from treefold.topology.planning.tree_packing import TreePacking
from treefold.topology.timeline import Timeline

_WIDE = 960.0


@dataclass(frozen=True)
class PlanStory:
    """What the page tells.

    ``title``: what the plan takes. ``packing``: the proof of what can be reached. ``movement``: the plan, by
    ``method``; ``timeline``: its own, as long as it is predicted to take. ``times``: (bytes, seconds) by method.
    ``tables``: the times and the packs, and ``words``: what is said below each. ``facts``: small print.
    """

    title: str
    topology: Topology
    packing: TreePacking
    movement: Movement
    timeline: Timeline
    times: Mapping[str, Sequence[tuple[float, float]]]
    tables: tuple[Table, Table]
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
        Figure(
            f"{bytes_in_words(timeline.nbytes)} per device",
            seconds_in_words(timeline.duration_s),
            f"by {story.method} in {counted(num_packs, 'pack')}, predicted",
        ),
        Figure("All-reduce, GB/s", f"{reached:.2f}", "of this plan: bytes over seconds"),
        Figure("Bound, GB/s", f"{packing.bound_bytes_per_s / 1e9:.2f}", bound),
        Figure("Bus bandwidth, GB/s", f"{reached * 2 * (count - 1) / count:.1f}", "as nccl-tests prints it"),
    )
