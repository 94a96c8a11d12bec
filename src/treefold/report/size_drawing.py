"""What each method reaches at each size, as curves: bytes from left to right, GB/s upwards, both in powers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from treefold.errors.words import bytes_in_words, seconds_in_words
from treefold.report.svg import LIGHT, drawing, element, text, titled

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 960.0, 380.0, 64.0, 250.0, 26.0, 44.0
_DECADE = 10.0
_APART = 17.0  # between names of curves


def draw_sizes(times: Mapping[str, Sequence[tuple[float, float]]], *, title: str, bound: float = math.inf) -> str:
    """Return algorithm bandwidth over size as one SVG element: S / t in GB/s, up to ``bound`` bytes per second.

    ``times``: for each method (bytes, predicted seconds) in order of bytes; both above 0.
    """
    points = {name: [(size, size / seconds / 1e9) for size, seconds in found] for name, found in times.items()}
    sizes = [size for found in points.values() for size, _ in found]
    rates = [rate for found in points.values() for _, rate in found] + ([bound / 1e9] if math.isfinite(bound) else [])
    low, high = math.log2(min(sizes)), math.log2(max(sizes))
    floor, top = math.floor(math.log10(min(rates))), math.log10(max(rates) * 1.08)

    def at(size: float, rate: float) -> tuple[float, float]:
        x = (math.log2(size) - low) / max(high - low, 1e-9)
        y = (math.log10(rate) - floor) / max(top - floor, 1e-9)
        return _LEFT + x * (_WIDTH - _LEFT - _RIGHT), _HEIGHT - _BOTTOM - y * (_HEIGHT - _TOP - _BOTTOM)

    parts = _grid(at, (low, high), (floor, top))
    if math.isfinite(bound):
        parts.append(_bound(at(2**low, bound / 1e9)[1], bound))
    names = _apart({name: at(*found[-1])[1] for name, found in points.items()})
    for number, (name, found) in enumerate(points.items()):
        parts.append(_curve(name, [at(*point) for point in found], number, names[name], times[name]))
    words = [
        f"{name}: {', '.join(f'{bytes_in_words(s)} in {seconds_in_words(t)}' for s, t in found)}."
        for name, found in times.items()
    ]
    return drawing(parts, width=_WIDTH, height=_HEIGHT, title=title, description=" ".join(words))


def _grid(at: object, sizes: tuple[float, float], rates: tuple[int, float]) -> list[str]:
    assert callable(at)  # noqa: S101 - our own invariant
    parts, right = [], _WIDTH - _RIGHT
    for power in range(rates[0], math.floor(rates[1]) + 1):
        y = at(1.0 * 2 ** sizes[0], _DECADE**power)[1]
        parts.append(element("line", class_="tf-rule", x1=_LEFT, x2=right, y1=y, y2=y))
        parts.append(text(f"{_DECADE**power:g}", _LEFT - 8, y + 4, class_="tf-quiet", text_anchor="end", font_size=11))
    step = max(1, math.ceil((sizes[1] - sizes[0]) / 10))
    for power in range(math.ceil(sizes[0]), math.floor(sizes[1]) + 1, step):
        x = at(2.0**power, _DECADE ** rates[0])[0]
        y = _HEIGHT - _BOTTOM
        parts.append(element("line", class_="tf-rule", x1=x, x2=x, y1=y, y2=y + 5))
        parts.append(text(bytes_in_words(2.0**power), x, y + 20, class_="tf-quiet", text_anchor="middle", font_size=11))
    parts.append(text("GB/s", _LEFT - 8, _TOP - 10, class_="tf-quiet", text_anchor="end", font_size=11))
    return parts


def _bound(y: float, bound: float) -> str:
    line = element("line", class_="tf-bound", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=y, y2=y, stroke="var(--tf-quiet)",
                   stroke_dasharray="5 4")  # fmt: skip
    words = text(f"at most {bound / 1e9:.4g} GB/s", _LEFT + 8, y - 5, class_="tf-quiet", font_size=11)
    return line + words


def _apart(wanted: Mapping[str, float]) -> dict[str, float]:
    """Return heights for names that are near the wanted ones and do not overlap."""
    found: dict[str, float] = {}
    last = -math.inf
    for name, y in sorted(wanted.items(), key=lambda item: item[1]):
        last = found[name] = max(y, last + _APART)
    return found


def _curve(
    name: str, points: Sequence[tuple[float, float]], number: int, label: float, times: Sequence[tuple[float, float]]
) -> str:
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    last = f"{bytes_in_words(times[-1][0])} in {seconds_in_words(times[-1][1])}"
    x, y = points[-1]
    parts = [
        titled(f"{name}: {last}"),
        element("polyline", class_="tf-line", points=line, stroke_width=2),
        *(element("circle", class_="tf-fill", cx=cx, cy=cy, r=2.6) for cx, cy in points),
        element("line", class_="tf-line", x1=x + 4, y1=y, x2=x + 16, y2=label, stroke_width=0.8),
        text(name, x + 20, label + 4, class_="tf-tone-text", font_size=12.5),
    ]
    return element("g", *parts, class_=f"tf-curve tf-tone-{number % len(LIGHT)}")
