"""Charts as SVG, drawn without a plotting library: curves over steps and sizes, and bars."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from treefold.errors.words import bytes_in_words, counted, seconds_in_words
from treefold.topology.drawing.svg import LIGHT, drawing, element, text, titled

_PLOT, _LEFT, _RIGHT, _BOTTOM = 300.0, 56.0, 28.0, 46.0
_NAMES, _CHARACTER = 22.0, 7.2
_ROW, _BAR, _TOP = 32.0, 18.0, 12.0  # of bars
_TIME, _SIZE = 70.0, 62.0  # room for a time beside a bar, and for a size below the axis


@dataclass(frozen=True, slots=True)
class Curve:
    """One value per step, the name in the legend, and the number of the colour, which is the same in all pictures."""

    name: str
    values: tuple[float, ...]
    tone: int


@dataclass(frozen=True)
class _Chart:
    """The frame of a chart: the legend above the plot, and the ends of both axes. The y axis is logarithmic."""

    names: Sequence[str]
    width: float
    xs: tuple[float, float]
    ys: tuple[float, float]

    @cached_property
    def spots(self) -> list[tuple[float, float]]:
        """The positions of the legend's names: side by side, with a new line where the width ends."""
        x, y, found = _LEFT, 20.0, list[tuple[float, float]]()
        for name in self.names:
            needed = 50 + _CHARACTER * len(name)
            if x > _LEFT and x + needed > self.width:
                x, y = _LEFT, y + _NAMES
            found.append((x, y))
            x += needed
        return found

    @cached_property
    def bottom(self) -> float:
        """The y coordinate at which the plot ends, below the legend and a line for the unit."""
        return self.spots[-1][1] + 40 + _PLOT

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Return the point on paper for a position on the x axis and a value."""
        (left, right), (low, high) = self.xs, map(math.log10, self.ys)
        part = (math.log10(max(y, self.ys[0])) - low) / max(high - low, 1e-9)
        return _LEFT + (self.width - _LEFT - _RIGHT) * (x - left) / max(right - left, 1e-9), self.bottom - _PLOT * part

    def line(self, points: Iterable[tuple[float, float]], **style: float | str) -> str:
        """Return a curve through points of the plot."""
        joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        return element("polyline", class_="tf-line", points=joined, stroke_linejoin="round", **style)

    def draw_axes(self, ticks: Mapping[float, str]) -> list[str]:
        """Draw rules at powers of ten, or at some numbers between them, and ticks below the plot."""
        parts = []
        for value in _decade_ticks(*self.ys):
            y = self.at(self.xs[0], value)[1]
            parts.append(element("line", class_="tf-rule", x1=_LEFT, x2=self.width - _RIGHT, y1=y, y2=y))
            parts.append(text(f"{value:g}", _LEFT - 8, y + 4, class_="tf-quiet", text_anchor="end", font_size=11))
        for place, words in ticks.items():
            x, y = self.at(place, self.ys[0])
            parts.append(element("line", class_="tf-rule", x1=x, x2=x, y1=y, y2=y + 5))
            parts.append(text(words, x, y + 20, class_="tf-quiet", text_anchor="middle", font_size=11))
        return parts

    def draw_name(self, number: int, tone: int, **style: float) -> str:
        """Draw an entry of the legend: a sample of its line, then its name."""
        x, y = self.spots[number]
        swatch = element("line", class_="tf-line", x1=x, x2=x + 26, y1=y, y2=y, **style)
        return element("g", swatch, text(self.names[number], x + 34, y + 4), class_=f"tf-tone-{tone}")


def draw_curves(curves: Sequence[Curve], *, title: str, width: float = 860.0) -> str:
    """Return one curve per name over the number of the step, on a logarithmic axis, as one SVG element.

    Values that are not positive lie on the lower end of the axis. The first curve is broad and pale, and later ones are
    thin and drawn over it, so that curves that coincide are all seen.
    """
    positive = [value for curve in curves for value in curve.values if value > 0] or [1.0]
    steps = max(len(curve.values) for curve in curves)
    ends = min(positive) / 1.15, max(positive) * 1.15  # a little air
    chart = _Chart([curve.name for curve in curves], width, (1, max(steps, 2)), ends)
    parts = chart.draw_axes({step: str(step) for step in _step_ticks(steps)})
    middle = chart.at((1 + max(steps, 2)) / 2, 1)[0]
    parts.append(text("step", middle, chart.bottom + 38, class_="tf-quiet", text_anchor="middle", font_size=11))
    for index, curve in enumerate(curves):
        points = [chart.at(step, value) for step, value in _thinned(curve)]
        style = {"stroke_width": 6, "stroke_opacity": 0.45} if index == 0 else {"stroke_width": 1.6}
        line = chart.line(points, stroke_linecap="round", **style)
        parts.append(element("g", titled(curve.name), line, class_=f"tf-curve tf-tone-{curve.tone}"))
        parts.append(chart.draw_name(index, curve.tone, **style))
    words = "; ".join(f"{c.name}: from {c.values[0]:.4g} to {c.values[-1]:.4g}" for c in curves)
    said = f"{counted(steps, 'step')}. {words}."
    return drawing(parts, width=width, height=chart.bottom + _BOTTOM, title=title, description=said)


def _thinned(curve: Curve) -> list[tuple[int, float]]:
    """Return (step, value) of about two thousand steps at most, the last included; one step makes a dot."""
    every = -(-len(curve.values) // 2000)
    points = list(enumerate(curve.values, start=1))
    return [*points[::every], points[-1]]


def _decade_ticks(low: float, high: float) -> list[float]:
    """Return 1, 2 and 5 times powers of ten; over many decades the powers alone."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1, 2, 5) if math.log10(high / low) < 3 else (1,)  # noqa: PLR2004 - more labels would touch
    return [f * 10.0**d for d in decades for f in factors if low <= f * 10.0**d <= high]


def _step_ticks(steps: int) -> list[int]:
    """Return 1 and some round numbers, the last of them not beyond the last step."""
    rough = max(1, steps // 6)
    scale = 10 ** (len(str(rough)) - 1)
    every = next(scale * factor for factor in (1, 2, 5, 10) if scale * factor >= rough)
    return [1, *(step for step in range(every, steps + 1, every) if step > 1)]


def draw_bars(seconds: Mapping[str, float], *, title: str, width: float = 640.0) -> str:
    """Draw one bar per name, its length proportional to the time printed after it, as one SVG element."""
    left = 24 + _CHARACTER * max(map(len, seconds))
    scale = (width - left - _TIME) / max(seconds.values())
    parts = []
    for number, (name, value) in enumerate(seconds.items()):
        y, length, words = _TOP + number * _ROW, max(value * scale, 1.0), seconds_in_words(value)
        marks = (
            text(name, left - 10, y + 14, text_anchor="end"),
            element("rect", class_="tf-fill", x=left, y=y, width=length, height=_BAR, rx=3),
            text(words, left + length + 8, y + 14),
        )
        tone = f"tf-bar tf-tone-{number % len(LIGHT)}"
        parts.append(element("g", titled(f"{name}: {words}"), *marks, class_=tone))
    said = ", ".join(f"{name}: {seconds_in_words(value)}" for name, value in seconds.items())
    height = 2 * _TOP + _ROW * len(seconds) - (_ROW - _BAR)
    return drawing(parts, width=width, height=height, title=title, description=f"{said}.")


def draw_sizes(
    times: Mapping[str, Sequence[tuple[float, float]]], *, title: str, bound: float = math.inf, width: float = 960.0
) -> str:
    """Draw algorithm bandwidth over size as one SVG element: S / t in GB/s, with a line at ``bound`` bytes per second.

    ``times``: for each method (bytes, predicted seconds) in order of bytes; both above 0. A single size makes no curve,
    so its seconds are drawn as bars.
    """
    sizes = sorted({size for found in times.values() for size, _ in found})
    if len(sizes) == 1:
        return draw_bars({name: found[0][1] for name, found in times.items()}, title=title, width=width)
    rates = [size / seconds / 1e9 for found in times.values() for size, seconds in found]
    rates += [bound / 1e9] * math.isfinite(bound)
    low, high = math.log2(sizes[0]), math.log2(sizes[-1])
    floor = 10.0 ** math.floor(math.log10(min(rates)))
    chart = _Chart(list(times), width, (low, high), (floor, max(rates) * 1.08))
    every = max(1, math.ceil((high - low) * _SIZE / (width - _LEFT - _RIGHT)))
    powers = range(math.ceil(low), math.floor(high) + 1, every)
    parts = chart.draw_axes({power: bytes_in_words(2.0**power) for power in powers})
    parts.append(text("GB/s", _LEFT - 8, chart.bottom - _PLOT - 8, class_="tf-quiet", text_anchor="end", font_size=11))
    if math.isfinite(bound):
        y = chart.at(low, bound / 1e9)[1]
        dashed = {"stroke": "var(--tf-quiet)", "stroke_dasharray": "5 4"}
        parts.append(element("line", class_="tf-bound", x1=_LEFT, x2=width - _RIGHT, y1=y, y2=y, **dashed))
        parts.append(text(f"at most {bound / 1e9:.4g} GB/s", _LEFT + 8, y - 5, class_="tf-quiet", font_size=11))
    words = []
    for number, (name, found) in enumerate(times.items()):
        points = [chart.at(math.log2(size), size / seconds / 1e9) for size, seconds in found]
        said = [f"{bytes_in_words(size)} in {seconds_in_words(seconds)}" for size, seconds in found]
        dots = (element("circle", class_="tf-fill", cx=x, cy=y, r=2.6) for x, y in points)
        curve = [titled(f"{name}: {said[-1]}"), chart.line(points, stroke_width=2), *dots]
        parts.append(element("g", *curve, class_=f"tf-curve tf-tone-{number % len(LIGHT)}"))
        parts.append(chart.draw_name(number, number % len(LIGHT), stroke_width=2))
        words.append(f"{name}: {', '.join(said)}.")
    return drawing(parts, width=width, height=chart.bottom + _BOTTOM, title=title, description=" ".join(words))
