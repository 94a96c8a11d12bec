"""One self-contained page about a plan: what it reaches and why no other reaches more, playing, priced, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from treefold.plan import Movement
from treefold.planners.tree_packing import TreePacking
from treefold.report.bottleneck import describe_bottleneck
from treefold.report.page import Check, Figure, Page, Section, render_page
from treefold.report.plan_picture import headline
from treefold.report.plan_player import describe_picture, draw_player
from treefold.report.size_drawing import draw_sizes
from treefold.timeline import Timeline
from treefold.topology import Topology

_EXACT = 1e-6


@dataclass(frozen=True)
class PlanStory:
    """What the page tells. ``times``: (bytes, seconds) by method; ``words``: as printed; ``facts``: small print."""

    topology: Topology
    packing: TreePacking
    movement: Movement
    timeline: Timeline
    times: Mapping[str, Sequence[tuple[float, float]]]
    table: str
    words: str
    checks: tuple[Check, ...]
    facts: tuple[tuple[str, str], ...]


def render_plan_page(story: PlanStory) -> str:
    """Return the page as one HTML document that loads nothing."""
    packing, topology = story.packing, story.topology
    sections = [
        Section(
            "The plan at work",
            f"{describe_picture(story.timeline)} Few chunks, so that they can be told apart; "
            "the times below are those of the best chunk.",
            drawing=draw_player(topology, packing, story.movement, story.timeline),
        )
    ]
    if story.times:
        drawing = draw_sizes(story.times, title="Predicted bandwidth by size", bound=packing.bound_bytes_per_s)
        sections.append(
            Section("Predicted", "Algorithm bandwidth: bytes per device over seconds.", drawing, verbatim=story.table)
        )
    sections.append(Section("In words", "As treefold plan prints it.", verbatim=story.words))
    page = Page(
        title=headline(topology, packing),
        summary=f"Bottleneck: {describe_bottleneck(packing, topology)}.",
        figures=_figures(topology, packing),
        checks=story.checks,
        sections=tuple(sections),
        facts=story.facts,
        is_picture_first=True,
    )
    return render_page(page)


def _figures(topology: Topology, packing: TreePacking) -> tuple[Figure, ...]:
    if packing.algbw is None:
        return ()
    count, reached = len(packing.devices), packing.algbw_bytes_per_s / 1e9
    gap = "0" if packing.gap < _EXACT else f"{packing.gap:.2%}"
    is_whole = topology.missing is None
    proved = "proved optimal" if is_whole else "for the links in this file"
    bound = "no schedule of plain values exceeds it" + ("" if is_whole else " on the links in this file")
    return (
        Figure("All-reduce GB/s", f"{reached:.2f}", "of this plan, S/t for large values"),
        Figure("Bound, GB/s", f"{packing.bound_bytes_per_s / 1e9:.2f}", bound),
        Figure("Gap", gap, proved if gap == "0" else "left by this many packs"),
        Figure("Bus bandwidth, GB/s", f"{reached * 2 * (count - 1) / count:.1f}", "as nccl-tests prints it"),
        Figure("Packs", str(len(packing.trees)), f"trees over {count} devices"),
    )
