"""What each method reaches at each size, as curves: bytes from left to right, GB/s upwards, both in powers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from treefold.errors.words import bytes_in_words, seconds_in_words
from treefold.topology.drawing.bars import draw_bars
from treefold.topology.drawing.curves import draw_name, place_names
from treefold.topology.drawing.svg import LIGHT, drawing, element, text, titled

_PLOT, _LEFT, _RIGHT, _BOTTOM = 300.0, 56.0, 28.0, 44.0
_DECADE = 10.0
_LABEL = 62.0  # room for a size below the axis
_At = Callable[[float, float], tuple[float, float]]


def draw_sizes(
    times: Mapping[str, Sequence[tuple[float, float]]], *, title: str, bound: float = math.inf, width: float = 960.0
) -> str:
    """Return algorithm bandwidth over size as one SVG element: S / t in GB/s, up to ``bound`` bytes per second.

    ``times``: for each method (bytes, predicted seconds) in order of bytes; both above 0. One size has no curve: the
    seconds are drawn as bars.
    """
    if len({size for found in times.values() for size, _ in found}) == 1:
        return draw_bars({name: found[0][1] for name, found in times.items()}, title=title, width=width)
    points = {name: [(size, size / seconds / 1e9) for size, seconds in found] for name, found in times.items()}
    sizes = [size for found in points.values() for size, _ in found]
    rates = [rate for found in points.values() for _, rate in found] + ([bound / 1e9] if math.isfinite(bound) else [])
    low, high = math.log2(min(sizes)), math.log2(max(sizes))
    floor, ceiling = math.floor(math.log10(min(rates))), math.log10(max(rates) * 1.08)
    spots = place_names(list(points), width)
    top = spots[-1][1] + 40

    def at(size: float, rate: float) -> tuple[float, float]:
        x = (math.log2(size) - low) / (high - low)
        y = (math.log10(rate) - floor) / max(ceiling - floor, 1e-9)
        return _LEFT + x * (width - _LEFT - _RIGHT), top + _PLOT * (1 - y)

    parts = _draw_grid(at, (low, high), (floor, ceiling), right=width - _RIGHT)
    if math.isfinite(bound):
        parts.append(_draw_bound(at(2**low, bound / 1e9)[1], bound, right=width - _RIGHT))
    for number, (name, found) in enumerate(points.items()):
        parts.append(_draw_curve(name, [at(*point) for point in found], number, times[name][-1]))
        parts.append(draw_name(name, number % len(LIGHT), spots[number], {"stroke_width": 2}))
    words = [
        f"{name}: {', '.join(f'{bytes_in_words(s)} in {seconds_in_words(t)}' for s, t in found)}."
        for name, found in times.items()
    ]
    return drawing(parts, width=width, height=top + _PLOT + _BOTTOM, title=title, description=" ".join(words))


def _draw_grid(at: _At, sizes: tuple[float, float], rates: tuple[int, float], *, right: float) -> list[str]:
    parts = []
    for power in range(rates[0], math.floor(rates[1]) + 1):
        y = at(2 ** sizes[0], _DECADE**power)[1]
        parts.append(element("line", class_="tf-rule", x1=_LEFT, x2=right, y1=y, y2=y))
        parts.append(text(f"{_DECADE**power:g}", _LEFT - 8, y + 4, class_="tf-quiet", text_anchor="end", font_size=11))
    step = max(1, math.ceil((sizes[1] - sizes[0]) * _LABEL / (right - _LEFT)))
    for power in range(math.ceil(sizes[0]), math.floor(sizes[1]) + 1, step):
        x, y = at(2.0**power, _DECADE ** rates[0])
        parts.append(element("line", class_="tf-rule", x1=x, x2=x, y1=y, y2=y + 5))
        parts.append(text(bytes_in_words(2.0**power), x, y + 20, class_="tf-quiet", text_anchor="middle", font_size=11))
    x, y = at(2 ** sizes[0], _DECADE ** rates[1])
    parts.append(text("GB/s", x - 8, y - 8, class_="tf-quiet", text_anchor="end", font_size=11))
    return parts


def _draw_bound(y: float, bound: float, *, right: float) -> str:
    line = element("line", class_="tf-bound", x1=_LEFT, x2=right, y1=y, y2=y, stroke="var(--tf-quiet)",
                   stroke_dasharray="5 4")  # fmt: skip
    return line + text(f"at most {bound / 1e9:.4g} GB/s", _LEFT + 8, y - 5, class_="tf-quiet", font_size=11)


def _draw_curve(name: str, points: Sequence[tuple[float, float]], number: int, last: tuple[float, float]) -> str:
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    parts = [
        titled(f"{name}: {bytes_in_words(last[0])} in {seconds_in_words(last[1])}"),
        element("polyline", class_="tf-line", points=line, stroke_width=2),
        *(element("circle", class_="tf-fill", cx=cx, cy=cy, r=2.6) for cx, cy in points),
    ]
    return element("g", *parts, class_=f"tf-curve tf-tone-{number % len(LIGHT)}")
