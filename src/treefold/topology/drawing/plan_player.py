"""A plan that plays: the machine with chunks that move, the load of every link, the trees and the timeline."""

from __future__ import annotations

import functools
import html
import importlib.resources
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from treefold.errors.words import bytes_in_words, counted, seconds_in_words
from treefold.plan import Movement
from treefold.plan.ir import Copy, Role
from treefold.topology.drawing.machine_drawing import draw_machine, fitted, legend_in_words
from treefold.topology.drawing.machine_layout import MachineLayout, lay_out
from treefold.topology.drawing.packs import DrawnPack, PackGroup, group_packs
from treefold.topology.drawing.page import for_screens
from treefold.topology.drawing.svg import LIGHT
from treefold.topology.drawing.timeline_drawing import draw_timeline, shown_links, time_axis
from treefold.topology.drawing.tree_drawing import draw_trees, hosts_of, tone
from treefold.topology.graph import Topology
from treefold.topology.timeline import Activity, Timeline

_WIDTH = 960.0
_MICRO, _FEW_ROWS, _FEW_PACKS = 1e6, 24, 8
_HINT = (
    '<p class="hint">Filled dots: partial sums on their way to the root. Rings: results on their way back. '
    '<span class="wide">Space plays, ← and → move in time, ↑ and ↓ choose a pack, Escape shows all.</span></p>'
)
_TERMS = (
    '<dl class="terms"><dt>Pack</dt><dd>values that travel together, along a tree of their own</dd>'
    "<dt>Root</dt><dd>the device where the contributions to a pack meet; its result starts there</dd>"
    "<dt>Bound</dt><dd>the bandwidth that no plan exceeds on these links</dd></dl>"
)


def draw_player(topology: Topology, packs: Sequence[DrawnPack], movement: Movement, timeline: Timeline) -> str:
    """Return the player as HTML with its style, drawings, controls, data and script, so that nothing is loaded.

    ``timeline``: that of ``movement``, which has these ``packs``. Without scripts a reader still sees the drawings.
    """
    layout, groups = lay_out(topology), group_packs(packs, hosts_of(topology))
    trees = for_screens(functools.partial(draw_trees, topology, packs), wide=_WIDTH)
    words = "The machine, with the chunks of a plan on their way."
    stage = draw_machine(topology, description=words, widest=_WIDTH)
    opened = " open" if len(shown_links(timeline)) <= _FEW_ROWS else ""
    parts = [
        f"<style>{_resource('player.css')}</style>",
        f'<div class="stage">{fitted(stage, width=layout.width)}</div>',
        f'<p class="hint narrow">{html.escape(legend_in_words(topology))}</p>',
        _controls(timeline),
        _packs(groups),
        _HINT,
        _TERMS,
        f"<h3>Load of the links so far (100 %: busy from start to end)</h3>{_loads(timeline, topology)}",
        f'<h3>Trees</h3><div class="scroll">{trees}</div>',
        f'<details{opened}><summary>Links over time</summary><div class="scroll">'
        f"{draw_timeline(timeline, topology, width=_WIDTH)}</div></details>",
        f'<script type="application/json">{_data(topology, layout, groups, movement, timeline)}</script>',
    ]
    body = "\n".join(parts)
    script = _resource("player.js")
    return f'<div class="tf-player tf-drawing" tabindex="-1">{body}</div>\n<script>\n{script}</script>'


def _resource(name: str) -> str:
    return importlib.resources.files("treefold.topology.drawing").joinpath(name).read_text(encoding="utf-8")


def _controls(timeline: Timeline) -> str:
    speeds = "".join(f'<option value="{s}"{" selected" * (s == 1)}>{s}×</option>' for s in (0.25, 0.5, 1, 2, 4))
    return (
        '<div class="bar"><button type="button" class="play">Play</button>'
        '<input type="range" min="0" max="1000" step="1" value="0" aria-label="time">'
        f"<output>{html.escape(seconds_in_words(timeline.duration_s))}</output>"
        f'<select aria-label="speed">{speeds}</select></div>'
    )


def _packs(groups: Sequence[PackGroup]) -> str:
    """Return a button per pack, packs of one shape side by side, with the share of each after them.

    If there are many, they are folded away. The script writes the shown pack's number beside their count.
    """
    count = sum(len(group.packs) for group in groups)
    parts = ['<button type="button" data-pack="-1" aria-pressed="false">all packs</button>']
    for group in groups:
        buttons = "".join(
            f'<button type="button" style="--tone:var(--{tone(number)})" data-pack="{number}" '
            f'title="{pack.share:.2%} of the values" aria-pressed="false">{number}</button>'
            for number, pack in zip(group.numbers, group.packs, strict=True)
        )
        parts.append(f"<span>{buttons}<small>{group.shares}</small></span>")
    buttons = f'<div class="packs" role="group" aria-label="packs">{"".join(parts)}</div>'
    opened = " open" if count <= _FEW_PACKS else ""
    return f'<details{opened}><summary>{counted(count, "pack")}<span class="shown"></span></summary>{buttons}</details>'


def _loads(timeline: Timeline, topology: Topology) -> str:
    """Return the load of every link, the busiest first. Links of one width and load share a row, which opens."""
    rows: dict[tuple[int, Fraction], list[int]] = defaultdict(list)
    links = _links(timeline)
    for number, ends in enumerate(links):
        width = topology.capacity(*ends)
        share = timeline.links[ends].nbytes / (float(width) * timeline.duration_s)
        rows[round(100 * share), width].append(number)
    return f'<div class="loads">{"".join(_load(links, rows[key]) for key in sorted(rows, reverse=True))}</div>'


def _load(links: Sequence[tuple[str, str]], numbers: Sequence[int]) -> str:
    names = [html.escape(" → ".join(links[number])) for number in numbers]
    data = f'data-links="{",".join(map(str, numbers))}"'
    bar = "<i><b></b></i><span></span>"
    if len(names) == 1:
        return f"<div {data}><span>{names[0]}</span>{bar}</div>"
    summary = f"<summary {data}><span>{names[0]} and {len(names) - 1} more</span>{bar}</summary>"
    return f"<details>{summary}<p>{', '.join(names)}</p></details>"


def _links(timeline: Timeline) -> list[tuple[str, str]]:
    """Return every link that carries something, those of the timeline's rows first."""
    return list(dict.fromkeys([*shown_links(timeline), *timeline.links]))


def _data(
    topology: Topology, layout: MachineLayout, groups: Sequence[PackGroup], movement: Movement, timeline: Timeline
) -> str:
    """Return the script's data: times in microseconds, links as indexes, ``spans`` as alternating starts and stops."""
    numbers = {ends: number for number, ends in enumerate(_links(timeline))}
    lines = {ends: number for number, ends in enumerate(layout.lines)}
    links = [
        {
            "path": lines.get(ends, lines.get(ends[::-1])),
            "back": ends not in lines,
            "bytes_per_s": float(topology.capacity(*ends)),
        }
        for ends in numbers
    ]
    down = _ways_down(movement)
    moves = [_move(activity, numbers, down) for activity in timeline.activities if activity.links]
    whole = {
        "duration": timeline.duration_s * _MICRO,
        "axis": time_axis(_WIDTH),
        "tones": len(LIGHT),
        "packs": sum(len(group.packs) for group in groups),
        "first": groups[0].numbers[0],
        "links": links,
        "moves": moves,
    }
    return json.dumps(whole, separators=(",", ":")).replace("<", "\\u003c")


def _move(
    activity: Activity, numbers: Mapping[tuple[str, str], int], down: set[tuple[int, int, str, str]]
) -> dict[str, Any]:
    key = (activity.step, activity.pack, activity.route[0], activity.route[-1])
    return {
        "pack": activity.pack,
        "down": int(key in down),
        "links": [numbers[ends] for ends in activity.links],
        "bytes": round(activity.nbytes / len(activity.spans), 1),
        "spans": [round(time * _MICRO, 3) for span in activity.spans for time in span],
    }


def _ways_down(movement: Movement) -> set[tuple[int, int, str, str]]:
    """Return (step, pack, sender, receiver) of the copies that carry results."""
    return {
        (number, action.pack, movement.buffers[action.source.buffer].device, target.device)
        for number, step in enumerate(movement.steps, start=1)
        for action in step.actions
        if isinstance(action, Copy)
        for target in (movement.buffers[action.target.buffer],)
        if target.role in {Role.RESULT, Role.OUTPUT}
    }


def describe_picture(timeline: Timeline) -> str:
    """Return what the player shows, in a sentence."""
    return (
        f"{bytes_in_words(timeline.nbytes)} per device in {seconds_in_words(timeline.duration_s)}, as predicted. Drawn "
        f"in at most {counted(timeline.num_chunks, 'chunk')} per pack, so that they can be told apart."
    )
