"""A machine as a picture: hosts, switches, NICs and devices, links as thick as they are wide."""

from __future__ import annotations

import html
from collections.abc import Sequence
from fractions import Fraction

from treefold.errors.words import listed
from treefold.keyed import grouped
from treefold.topology.drawing.machine_layout import Box, MachineLayout, Point, label, lay_out
from treefold.topology.drawing.page import PHONE
from treefold.topology.drawing.svg import drawing, element, text, titled
from treefold.topology.graph import Topology

_THICKEST, _THINNEST, _MANY = 9.0, 1.4, 24
_SAMPLES, _CHARACTER = 5, 6.2
_LEGEND, _MOST_ZOOM = 46.0, 1.3
_SMALLEST, _LARGEST, _READABLE = 13.0, 30.0, 11.0  # letters in the boxes of devices, and as a phone shows them
STYLE = (
    ".tf-link{stroke:var(--tf-rule);fill:none;stroke-linecap:round}"
    ".tf-box{stroke:var(--tf-quiet);fill:var(--tf-paper)}"
    ".tf-host{fill:var(--tf-quiet);fill-opacity:.12;stroke:var(--tf-rule)}"
    ".tf-frame{fill:var(--tf-quiet);fill-opacity:.05;stroke:var(--tf-rule)}"
    ".tf-solid,.tf-on{fill:var(--tf-paper)}.tf-ink{fill:var(--tf-ink)}.tf-span{fill-opacity:.85}"
)


def draw_machine(topology: Topology, *, description: str = "", widest: float = 0.0) -> str:
    """Return the machine as one SVG element with a title and a description, legible in light and dark themes.

    Args:
        topology: the machine.
        description: words for screen readers; by default the nodes and links.
        widest: width in pixels up to which a small drawing is enlarged, to at most 1.3 times its size.

    """
    layout = lay_out(topology)
    parts = [element("style", STYLE), machine_marks(topology, layout), draw_legend(topology, layout.height)]
    width = max(layout.width, 420.0)
    return drawing(
        parts,
        width=width,
        height=layout.height + _LEGEND,
        title=f"{machine_title(topology)}{but_missing(topology)}",
        description=description or describe(topology),
        zoom=max(1.0, min(_MOST_ZOOM, widest / width)),
    )


def fitted(svg: str, *, width: float) -> str:
    """Return the drawing of a machine as a page shows it: as wide as the screen.

    On a phone the drawing is small: devices show only their numbers, in letters that are large enough, and there is no
    legend. ``width``: that of the drawing.
    """
    size = min(_LARGEST, max(_SMALLEST, _READABLE * width / PHONE))
    return f'<div class="tf-fitted" style="--tf-label:{size:.0f}px">{svg}</div>'


def machine_title(topology: Topology) -> str:
    """Return the name of a machine, with its number of devices."""
    count = len(topology.devices)
    return f"{topology.name or 'a machine'}: {count} device{'' if count == 1 else 's'}"


def but_missing(topology: Topology) -> str:
    """Return a headline's ending about links that the machine has and its description lacks, or an empty string."""
    return f". {topology.missing}." if topology.missing is not None else ""


def machine_marks(topology: Topology, layout: MachineLayout) -> str:
    """Return the marks of frames, links and boxes; the path of the layout's line i has the id ``link-<i>``."""
    frames = [_frame(label, frame) for label, frame in layout.frames.items()]
    links = [_link(topology, layout, number, pair) for number, pair in enumerate(layout.lines)]
    boxes = [_box(name, box) for name, box in layout.boxes.items()]
    return element("g", *frames, element("g", *links, class_="tf-links"), *boxes, class_="tf-machine")


def thickness(topology: Topology, width: Fraction) -> float:
    """Return how thick a link of this width is drawn."""
    widest = max(topology.capacities.values(), default=width)
    thickest = _THICKEST if len(topology.capacities) <= 2 * _MANY else _THICKEST * 2 / 3
    return max(_THINNEST, thickest * float(width / widest))


def _frame(label: str, box: Box) -> str:
    rect = element("rect", class_="tf-frame", x=box.left, y=box.top, width=box.width, height=box.height, rx=10)
    return rect + text(label, box.left + 12, box.top + 18, class_="tf-quiet tf-name", font_size=12)


def _link(topology: Topology, layout: MachineLayout, number: int, pair: tuple[str, str]) -> str:
    there, back = topology.capacity(*pair), topology.capacity(*pair[::-1])
    words = f"{pair[0]} to {pair[1]}: {gb_per_s(there)}" + ("" if there == back else f", back {gb_per_s(back)}")
    kinds = sorted({link.kind for link in topology.links if {link.source, link.target} == set(pair)} - {""})
    path = element(
        "path", titled(f"{words} {', '.join(kinds)}".strip()), class_="tf-link", id=f"link-{number}",
        d=_path(layout.lines[pair]), stroke_width=thickness(topology, max(there, back)),
    )  # fmt: skip
    ends = [layout.boxes[name] for name in pair]
    if {box.kind for box in ends} != {"nic", "switch"}:
        return path
    corners = layout.lines[pair][:: 1 if ends[0].kind == "nic" else -1]
    dots = (element("circle", class_="tf-joint", cx=x, cy=y, r=2.2, fill="var(--tf-quiet)") for x, y in corners[1:])
    return path + "".join(dots)


def _path(points: Sequence[Point]) -> str:
    """Return the ``d`` attribute of a line with these corners, or of a curve if there are four points."""
    start, *rest = (f"{x:.1f} {y:.1f}" for x, y in points)
    return f"M{start}C{' '.join(rest)}" if len(rest) == 3 else f"M{start}L{'L'.join(rest)}"  # noqa: PLR2004


def _box(name: str, box: Box) -> str:
    size = {"x": box.left, "y": box.top, "width": box.width, "height": box.height}
    kind, colon, rest = _shortened(label(name), box.width).rpartition(":")
    prefix = element("tspan", html.escape(kind + colon), class_="tf-prefix") if colon else ""
    words = element(
        "text", prefix, html.escape(rest), x=box.x, y=box.y + 4.5, text_anchor="middle",
        class_="tf-strong" if box.kind == "device" else "tf-quiet", font_size=13 if box.kind == "device" else 11.5,
    )  # fmt: skip
    solid = element("rect", class_="tf-solid", **size, rx=6)
    mark = element("rect", class_="tf-box" if box.kind == "device" else "tf-host", **size, rx=6, stroke_width=1.4)
    return element("g", titled(name), solid, mark, words, class_=f"tf-node tf-{box.kind}-node", data_name=name)


def _shortened(words: str, width: float) -> str:
    """Return as much of a label as fits; the element's title has all of it."""
    most = int(width / _CHARACTER)
    return words if len(words) <= most else f"{words[: most - 1]}…"


def gb_per_s(width: Fraction) -> str:
    """Return a bandwidth in words: "25 GB/s"."""
    return f"{float(width / 10**9):.4g} GB/s"


def draw_legend(topology: Topology, top: float) -> str:
    """Return samples of the links' thicknesses, with what they carry."""
    x, parts = 28.0, list[str]()
    for width in _samples(topology):
        y = top + 10
        line = f"M{x:.1f} {y:.1f}L{x + 34:.1f} {y:.1f}"
        parts.append(element("path", class_="tf-link", d=line, stroke_width=thickness(topology, width)))
        parts.append(text(gb_per_s(width), x + 42, y + 4, class_="tf-quiet", font_size=12))
        x += 128
    return element("g", titled("legend: bandwidth per direction"), *parts, class_="tf-legend")


def legend_in_words(topology: Topology) -> str:
    """Return in a sentence what the legend shows."""
    widths = listed([gb_per_s(width) for width in _samples(topology)], quote=False)
    return f"Links are drawn as thick as they are wide: {widths} per direction."


def _samples(topology: Topology) -> list[Fraction]:
    """Return the distinct widths from the least up, or a few of them if there are many."""
    widths = list({gb_per_s(width): width for width in sorted(topology.capacities.values())}.values())
    if len(widths) > _SAMPLES:
        widths = [widths[round(i * (len(widths) - 1) / (_SAMPLES - 1))] for i in range(_SAMPLES)]
    return widths


def describe(topology: Topology) -> str:
    """Return the drawing in words, for screen readers."""
    kinds = grouped((kind, name) for name, kind in topology.kinds.items())
    nodes = "; ".join(f"{kind}: {', '.join(names)}" for kind, names in kinds.items())
    links = (f"{source} to {target} {gb_per_s(width)}." for (source, target), width in topology.capacities.items())
    return f"{nodes}. {' '.join(links)}"
