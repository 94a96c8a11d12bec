"""The marks in the drawing of a plan, and the legend that says what they mean."""

from __future__ import annotations

import math
from collections.abc import Sequence

from treefold.topology.drawing.svg import element, text, titled

_LEFT, _ROW = 30.0, 26.0


def contribution(x: float, y: float) -> str:
    """Return the mark of a device that brings contributions: a ring."""
    return element("circle", class_="tf-ring", cx=x, cy=y, r=4.5, stroke_width=1.5)


def result(x: float, y: float) -> str:
    """Return the mark of a device that gets the result: a filled square."""
    return element("rect", class_="tf-fill", x=x - 5, y=y - 5, width=10, height=10, rx=1.5)


def combination(x: float, y: float, *, final: bool) -> str:
    """Return the mark of a combination: a dot, ringed where it holds every contribution."""
    dot = element("circle", class_="tf-fill", cx=x, cy=y, r=4.5)
    return element("circle", class_="tf-ring", cx=x, cy=y, r=8.0, stroke_width=1.5) + dot if final else dot


def move(x: float, y: float) -> str:
    """Return the mark of copies and concatenations that stay on a device: a small open square."""
    return element("rect", class_="tf-ring", x=x - 3.5, y=y - 3.5, width=7, height=7, stroke_width=1.5)


def arrow(start: tuple[float, float], end: tuple[float, float]) -> str:
    """Return an arrow with a dot where it starts, so that one that crosses a lifeline does not seem to start there.

    Its head is drawn and not a ``<marker>``: markers do not take the colour of their line everywhere.
    """
    (x1, y1), (x2, y2) = start, end
    length = math.hypot(x2 - x1, y2 - y1)
    ux, uy = (x2 - x1) / length, (y2 - y1) / length
    tip = (x2 - ux * 2, y2 - uy * 2)
    back = (tip[0] - ux * 9, tip[1] - uy * 9)
    corners = (tip, (back[0] - uy * 4, back[1] + ux * 4), (back[0] + uy * 4, back[1] - ux * 4))
    return (
        element("line", class_="tf-line", stroke_width=1.6, x1=x1, y1=y1, x2=back[0], y2=back[1])
        + element("circle", class_="tf-fill", cx=x1, cy=y1, r=2.4)
        + element("polygon", class_="tf-fill", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in corners))
    )


def legend(packs: Sequence[tuple[str, str]], *, note: str, width: float, top: float) -> tuple[str, float]:
    """Return the legend, wrapped to ``width``, and where it ends.

    ``packs``: (class, words) of each colour. ``note``: a last line; may be empty.
    """
    items = [
        (contribution(0, 0), "contribution"),
        (move(0, 0), "moved on its device"),
        (combination(0, 0, final=False), "combined"),
        (combination(0, 0, final=True), "combined, every contribution in"),
        (result(0, 0), "result"),
    ]
    swatch = element("line", class_="tf-line", x1=-9, y1=0, x2=9, y2=0, stroke_width=3)
    colours = [(element("g", swatch, class_=tone), words) for tone, words in packs]
    x, y, parts = _LEFT, top, list[str]()
    for index, (mark, words) in enumerate([*items, *colours]):
        needed = 46 + 6.6 * len(words)
        if x > _LEFT and (x + needed > width or index == len(items)):
            x, y = _LEFT, y + _ROW
        label = text(words, 16, 4.5, class_="tf-quiet", font_size=12)
        parts.append(element("g", mark, label, transform=f"translate({x:.0f} {y:.0f})"))
        x += needed
    if note:
        y += _ROW
        parts.append(text(note, _LEFT - 8, y + 4.5, class_="tf-quiet", font_size=12))
    return element("g", titled("legend"), *parts, class_="tf-legend"), y + _ROW
