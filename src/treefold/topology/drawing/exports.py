"""Files for other programs: machines and trees for Graphviz, timelines for Perfetto (ui.perfetto.dev) and Chrome."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any

from treefold.topology.drawing.packs import DrawnPack
from treefold.topology.drawing.svg import LIGHT
from treefold.topology.graph import Topology
from treefold.topology.timeline import Activity, Span, Timeline

_SHAPES = {"device": "box", "host": "house", "switch": "hexagon", "nic": "cds"}
_GIGA = 10**9
_LINKS, _DEVICES, _PATH = 1, 2, 3
_MICRO = 1e6


def to_dot(topology: Topology, packs: Sequence[DrawnPack] = ()) -> str:
    """Return the machine as an undirected graph for Graphviz; links are labelled in GB/s, and wide ones are thick.

    The tree of every pack is drawn over it in a colour of its own: dashed, from device to device, arrows towards the
    root. ``neato -Tsvg`` draws it.

    >>> from treefold.topology import known_topology
    >>> print(to_dot(known_topology("line:2")))
    graph "line:2" {
      node [fontname="sans-serif"];
      "gpu:0" [shape=box];
      "gpu:1" [shape=box];
      "gpu:0" -- "gpu:1" [label="25", penwidth=6];
    }
    <BLANKLINE>
    """
    lines = [f"graph {_quoted(topology.name)} {{", '  node [fontname="sans-serif"];']
    lines += [f"  {_quoted(node.name)} [shape={_SHAPES[node.kind]}];" for node in topology.nodes]
    lines += _links(topology)
    return "\n".join([*lines, *_trees(packs), "}", ""])


def _links(topology: Topology) -> Iterator[str]:
    widest = max(topology.capacities.values(), default=Fraction(1))
    for (source, target), width in topology.capacities.items():
        back = topology.capacity(target, source)
        if back and target < source:
            continue  # one line for both directions, drawn from the end that is first by name
        label = f"{float(width / _GIGA):g}" + ("" if back == width else f" / {float(back / _GIGA):g}")
        thick = f"{max(0.5, float(6 * max(width, back) / widest)):.2g}"
        yield f'  {_quoted(source)} -- {_quoted(target)} [label="{label}", penwidth={thick}];'


def _trees(packs: Sequence[DrawnPack]) -> Iterator[str]:
    for number, pack in enumerate(packs):
        colour = LIGHT[number % len(LIGHT)]
        for sender, receiver in pack.pairs:
            words = f"pack {number}, {pack.share:.1%}"
            style = f'color="{colour}", style=dashed, dir=forward, constraint=false, tooltip="{words}"'
            yield f"  {_quoted(sender)} -- {_quoted(receiver)} [{style}];"


def _quoted(name: str) -> str:
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def write_trace(timeline: Timeline, topology: Topology) -> str:
    """Return the trace as JSON, in Chrome's trace event format; times in microseconds.

    One track of this format cannot show chunks that share a link and overlap in time. Such chunks take further tracks
    of the same name. The critical path has a track of its own.
    """
    tracks = _Tracks()
    events: list[dict[str, Any]] = []
    for activity in timeline.activities:
        events += _events(activity, topology, tracks)
    for wait in timeline.critical_path:
        activity = timeline.activities[wait.activity]
        name = f"pack {activity.pack}: {' → '.join(activity.route)}"
        events.append(_event(name, "critical", (wait.start_s, wait.stop_s), _PATH, 0, {"chunk": wait.span}))
    names = {_LINKS: "links", _DEVICES: "devices", _PATH: "critical path"}
    heads = [_name("process_name", process, 0, name) for process, name in names.items()]
    heads += [_name("thread_name", process, number, name) for (process, number), name in tracks.names.items()]
    about = {"nbytes": timeline.nbytes, "num_chunks": timeline.num_chunks, "duration_s": timeline.duration_s}
    about["algbw_bytes_per_s"] = timeline.algbw_bytes_per_s
    whole = {"displayTimeUnit": "ns", "otherData": about, "traceEvents": [*heads, *events]}
    return json.dumps(whole, separators=(",", ":"), ensure_ascii=False)


class _Tracks:
    """Tracks by process and name, with the spans for which each is in use."""

    def __init__(self) -> None:
        self.names: dict[tuple[int, int], str] = {}
        self._tracks: dict[tuple[int, str], list[int]] = {}
        self._busy: dict[int, list[Span]] = {}

    def find(self, process: int, name: str, spans: Iterable[Span]) -> int:
        """Return the number of the first track of this name on which all these spans are free."""
        found = self._tracks.setdefault((process, name), [])
        wanted = sorted(spans)
        for number in found:
            together = sorted(self._busy[number] + wanted)
            if all(after[0] >= before[1] for before, after in pairwise(together)):
                self._busy[number] = together
                return number
        number = len(self._busy) + 1
        found.append(number)
        self._busy[number] = wanted
        self.names[process, number] = name if len(found) == 1 else f"{name} ({len(found)})"
        return number


def _events(activity: Activity, topology: Topology, tracks: _Tracks) -> Iterable[dict[str, Any]]:
    name = f"pack {activity.pack}"
    part = activity.nbytes / max(len(activity.spans), 1)
    about = {"kind": activity.kind, "step": activity.step, "bytes": part, "route": " → ".join(activity.route)}
    tracks_of_links = [
        (_LINKS, f"{a} → {b} ({float(topology.capacity(a, b)) / 1e9:.4g} GB/s)") for a, b in activity.links
    ]
    for process, track in tracks_of_links or [(_DEVICES, activity.route[0])]:
        spans = [span for span in activity.spans if tracks_of_links or span[1] > span[0]]
        if spans:
            number = tracks.find(process, track, spans)
            for chunk, span in enumerate(spans):
                yield _event(name, activity.kind, span, process, number, {**about, "chunk": chunk})


def _event(name: str, kind: str, span: Span, process: int, track: int, about: dict[str, Any]) -> dict[str, Any]:
    start, stop = span[0] * _MICRO, span[1] * _MICRO
    head = {"name": name, "cat": kind, "ph": "X", "ts": round(start, 4), "dur": round(stop - start, 4)}
    return head | {"pid": process, "tid": track, "args": about}


def _name(kind: str, process: int, track: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": process, "tid": track, "args": {"name": name}}
