"""A plan that plays: the machine with its chunks on their way, the load of every link, the trees and the timeline."""

from __future__ import annotations

import html
import importlib.resources
import json
from collections.abc import Mapping
from typing import Any

from treefold.errors.words import bytes_in_words, seconds_in_words
from treefold.plan import Movement
from treefold.plan.ir import Copy, Role
from treefold.planners.tree_packing import TreePacking
from treefold.report.machine_drawing import STYLE, draw_legend, machine_marks, machine_title
from treefold.report.machine_layout import Layout, lay_out
from treefold.report.svg import LIGHT, drawing, element
from treefold.report.timeline_drawing import draw_timeline, shown_links, time_axis
from treefold.report.tree_drawing import draw_trees, tone
from treefold.timeline import Activity, Timeline
from treefold.topology import Topology

_WIDTH, _LEGEND, _LARGEST = 960.0, 46.0, 1.3
_MICRO = 1e6


def draw_player(topology: Topology, packing: TreePacking, movement: Movement, timeline: Timeline) -> str:
    """Return the player as HTML: style, drawings, controls, data and script, all inside; nothing is loaded.

    ``timeline``: of ``movement``, which is along ``packing``. Without scripts the drawings are there all the same.
    """
    layout = lay_out(topology)
    parts = [
        f"<style>{_resource('player.css')}</style>",
        f'<div class="stage">{_stage(topology, layout)}</div>',
        _controls(timeline),
        _packs(packing),
        '<p class="hint">Filled dots: partial sums on their way to the root. Rings: results on their way back. '
        "Space plays, ← and → move in time, ↑ and ↓ choose a pack, Escape shows all.</p>",
        f"<h3>Load of the links, so far, of all that they could carry until the end</h3>{_loads(timeline)}",
        f'<h3>Trees</h3><div class="scroll">{draw_trees(topology, layout, packing, width=_WIDTH)}</div>',
        f'<h3>Links over time</h3><div class="scroll">{draw_timeline(timeline, topology, width=_WIDTH)}</div>',
        f'<script type="application/json">{_data(topology, layout, packing, movement, timeline)}</script>',
    ]
    body = "\n".join(parts)
    script = _resource("player.js")
    return f'<div class="tf-player tf-drawing" tabindex="-1">{body}</div>\n<script>\n{script}</script>'


def _resource(name: str) -> str:
    return importlib.resources.files("treefold.report").joinpath(name).read_text(encoding="utf-8")


def _stage(topology: Topology, layout: Layout) -> str:
    marks = [element("style", STYLE), machine_marks(topology, layout), draw_legend(topology, layout.height)]
    title = machine_title(topology)
    words = "The machine, with the chunks of a plan on their way."
    width, height = layout.width, layout.height + _LEGEND
    zoom = max(1.0, min(_LARGEST, _WIDTH / width))
    return drawing(marks, width=width, height=height, title=title, description=words, zoom=zoom)


def _controls(timeline: Timeline) -> str:
    speeds = "".join(f'<option value="{s}"{" selected" * (s == 1)}>{s}×</option>' for s in (0.25, 0.5, 1, 2, 4))
    return (
        '<div class="bar"><button type="button" class="play">Play</button>'
        '<input type="range" min="0" max="1000" step="1" value="0" aria-label="time">'
        f"<output>{html.escape(seconds_in_words(timeline.duration_s))}</output>"
        f'<select aria-label="speed">{speeds}</select></div>'
    )


def _packs(packing: TreePacking) -> str:
    buttons = ['<button type="button" data-pack="-1" aria-pressed="true">all packs</button>']
    buttons += [
        f'<button type="button" class="{tone(number)}" style="color:var(--tf-tone-{number % len(LIGHT)})" '
        f'data-pack="{number}" aria-pressed="false">{number}: {float(tree.share):.1%}</button>'
        for number, tree in enumerate(packing.trees)
    ]
    return f'<div class="packs" role="group" aria-label="packs">{"".join(buttons)}</div>'


def _loads(timeline: Timeline) -> str:
    rows = "".join(
        f"<div><span>{html.escape(f'{a} → {b}')}</span><i><b></b></i><span></span></div>" for a, b in _links(timeline)
    )
    return f'<div class="loads">{rows}</div>'


def _links(timeline: Timeline) -> list[tuple[str, str]]:
    """Return every link that carries something, those of the timeline's rows first."""
    return list(dict.fromkeys([*shown_links(timeline), *timeline.links]))


def _data(topology: Topology, layout: Layout, packing: TreePacking, movement: Movement, timeline: Timeline) -> str:
    """Return what the script reads: times in microseconds, links as indexes, ``spans`` as starts and stops in turn."""
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
        "packs": len(packing.trees),
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
        f"{bytes_in_words(timeline.nbytes)} per device, predicted: every pack in {timeline.num_chunks} chunks, "
        f"{seconds_in_words(timeline.duration_s)} in all."
    )
