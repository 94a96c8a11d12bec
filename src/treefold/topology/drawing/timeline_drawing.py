"""A timeline as a picture: a row per directed link, time to the right, chunks in the colour of their pack."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from itertools import pairwise

from treefold.errors.words import bytes_in_words, counted, seconds_in_words
from treefold.topology.drawing.machine_drawing import gb_per_s
from treefold.topology.drawing.svg import drawing, element, text, titled
from treefold.topology.drawing.tree_drawing import tone
from treefold.topology.graph import Topology
from treefold.topology.timeline import Span, Timeline

Ends = tuple[str, str]
_GUTTER, _ROW, _LANE, _HEAD, _RIGHT = 148.0, 17.0, 7.0, 34.0, 72.0
_HIGHEST, _LOWEST = 27.0, 2.4  # of all lanes of a row, of one lane
_MARGIN = 24.0
MAX_ROWS = 64
_SEAM = 0.35  # pixels between chunks that are still seen apart


def draw_timeline(timeline: Timeline, topology: Topology, *, width: float = 960.0) -> str:
    """Return the use of every link over time as one SVG element, for light and dark paper."""
    marks, height = timeline_marks(timeline, topology, width=width)
    title = f"{seconds_in_words(timeline.duration_s)} of {bytes_in_words(timeline.nbytes)}"
    words = [f"{a} to {b} is busy {use.busy_s / timeline.duration_s:.0%}." for (a, b), use in timeline.links.items()]
    return drawing([marks], width=width, height=height, title=f"Timeline: {title}", description=" ".join(words))


def timeline_marks(timeline: Timeline, topology: Topology, *, width: float, top: float = 0.0) -> tuple[str, float]:
    """Return the marks of a timeline and their lower end. The time axis runs over ``time_axis(width)``."""
    left, right = time_axis(width)
    scale = (right - left) / (timeline.duration_s or 1.0)
    spans: dict[Ends, dict[int, list[Span]]] = defaultdict(lambda: defaultdict(list))
    for activity in timeline.activities:
        for ends in activity.links:
            spans[ends][activity.pack] += activity.spans
    y, parts = top + _HEAD, list[str]()
    for ends in shown_links(timeline):
        lanes = _lanes(spans[ends])
        high = min(_LANE, max(_HIGHEST / len(lanes), _LOWEST))
        marks = [
            _spans(pack, spans[ends][pack], (left, y + 2 + lane * high), scale, high)
            for lane, packs in enumerate(lanes)
            for pack in packs
        ]
        height = max(_ROW, len(lanes) * high + 5)
        row = [*_row_words(timeline, topology, ends, y + height / 2 + 4, right), *marks]
        parts.append(element("g", *row, class_="tf-row"))
        y += height
    parts.insert(0, _axis(timeline, width, top, y))
    y += _MARGIN
    hidden = len(timeline.links) - len(parts) + 1
    if hidden > 0:
        parts.append(
            text(f"{counted(hidden, 'more link')}, less busy, not drawn.", _MARGIN, y, class_="tf-quiet", font_size=12)
        )
        y += _MARGIN
    return element("g", *parts, class_="tf-timeline"), y


def _row_words(timeline: Timeline, topology: Topology, ends: Ends, y: float, right: float) -> list[str]:
    width = topology.capacity(*ends)
    share = timeline.links[ends].nbytes / (float(width) * timeline.duration_s)
    name = f"{ends[0]} → {ends[1]}"
    return [
        titled(f"{name}, {gb_per_s(width)}: {share:.1%} of what it could carry"),
        text(name, _GUTTER - 10, y, text_anchor="end", font_size=11),
        text(f"{share:.0%}", right + 10, y, class_="tf-quiet", font_size=11),
    ]


def time_axis(width: float) -> tuple[float, float]:
    """Return the x coordinates at which time starts and stops on paper of this width."""
    return _GUTTER, width - _RIGHT


def shown_links(timeline: Timeline) -> list[Ends]:
    """Return the links that get a row: all, or the busiest, in the order of the timeline."""
    busiest = sorted(timeline.links, key=lambda ends: -timeline.links[ends].busy_s)[:MAX_ROWS]
    kept = set(busiest)
    return sorted((ends for ends in timeline.links if ends in kept), key=_by_number)


def _by_number(ends: Ends) -> tuple[tuple[str, int, str], ...]:
    keys = []
    for name in ends:
        kind, _, number = name.rpartition(":")
        keys.append((kind, int(number), "") if kind and number.isdigit() else ("~", 0, name))
    return tuple(keys)


def _lanes(spans: Mapping[int, list[Span]]) -> list[list[int]]:
    """Return packs in the fewest lanes that keep packs apart which share the link at some time."""
    lanes: list[tuple[list[int], list[Span]]] = []
    for pack in sorted(spans):
        for packs, busy in lanes:
            together = sorted(busy + spans[pack])
            if all(after[0] >= before[1] for before, after in pairwise(together)):
                packs.append(pack)
                busy[:] = together
                break
        else:
            lanes.append(([pack], sorted(spans[pack])))
    return [packs for packs, _ in lanes]


def _spans(pack: int, spans: list[Span], origin: tuple[float, float], scale: float, high: float) -> str:
    """Draw spans as one path, so that thousands of them stay one element."""
    left, y = origin
    parts = []
    at: list[float] = []
    for start, stop in sorted(spans):
        x1, x2 = left + start * scale, left + stop * scale
        if at and x1 - at[1] < _SEAM and x2 - at[0] < 4:  # noqa: PLR2004 - too narrow to be seen apart
            at[1] = max(at[1], x2)
            continue
        if at:
            parts.append(at)
        at = [x1, x2]
    parts.append(at)
    widths = [max(stop - start - _SEAM, _SEAM) for start, stop in parts]
    bars = zip(parts, widths, strict=True)
    d = "".join(f"M{start:.1f} {y:.1f}h{wide:.1f}v{high * 0.8:.1f}h-{wide:.1f}z" for (start, _), wide in bars)
    return element("path", class_=f"tf-fill tf-span {tone(pack)}", d=d, data_pack=pack)


def _axis(timeline: Timeline, width: float, top: float, bottom: float) -> str:
    left, right = time_axis(width)
    parts = []
    for tick in range(5):
        x = left + (right - left) * tick / 4
        line = element("line", class_="tf-rule", x1=x, x2=x, y1=top + _HEAD - 4, y2=bottom)
        words = seconds_in_words(timeline.duration_s * tick / 4)
        parts += [line, text(words, x, top + _HEAD - 10, class_="tf-quiet", text_anchor="middle", font_size=11)]
    return element("g", *parts, class_="tf-axis")
