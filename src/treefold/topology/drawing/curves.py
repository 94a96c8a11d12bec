"""Curves over steps as SVG, drawn by hand: a few polylines and ticks need no plotting library."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from treefold.errors.words import counted
from treefold.topology.drawing.svg import drawing, element, text, titled

_PLOT, _LEFT, _RIGHT, _BOTTOM = 250.0, 56.0, 20.0, 46.0
_NAMES, _CHARACTER = 22.0, 7.2


@dataclass(frozen=True, slots=True)
class Curve:
    """One value per step, the name it has in the legend, and the number of its colour, the same in all pictures."""

    name: str
    values: tuple[float, ...]
    tone: int


@dataclass(frozen=True, slots=True)
class _Axes:
    """The paper: ``top`` is where the plot begins, below the legend."""

    width: float
    top: float
    low: float
    high: float
    steps: int

    @property
    def bottom(self) -> float:
        return self.top + _PLOT

    def x(self, step: float) -> float:
        return _LEFT + (self.width - _LEFT - _RIGHT) * ((step - 1) / max(1, self.steps - 1))

    def y(self, value: float) -> float:
        return self.bottom - _PLOT * math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)


def draw_curves(curves: Sequence[Curve], *, title: str, width: float = 860.0) -> str:
    """Return curves over the number of the step, on a logarithmic axis.

    Values that are not positive lie on the lower end of the axis.
    The first curve is drawn broad and pale, later ones thin and above it, so that curves that coincide are all seen.
    """
    low, high = _limits([value for curve in curves for value in curve.values])
    spots = place_names([curve.name for curve in curves], width)
    axes = _Axes(width, spots[-1][1] + 22, low, high, max(len(curve.values) for curve in curves))
    parts = _draw_axes(axes)
    for index, (curve, spot) in enumerate(zip(curves, spots, strict=True)):
        points = " ".join(f"{axes.x(step):.1f},{axes.y(value):.1f}" for step, value in _thinned(curve))
        style = {"stroke_width": 6, "stroke_opacity": 0.45} if index == 0 else {"stroke_width": 1.6}
        line = element(
            "polyline", class_="tf-line", points=points, stroke_linejoin="round", stroke_linecap="round", **style
        )
        parts.append(element("g", titled(curve.name), line, class_=f"tf-curve tf-tone-{curve.tone}"))
        parts.append(draw_name(curve.name, curve.tone, spot, style))
    words = "; ".join(f"{c.name}: from {c.values[0]:.4g} to {c.values[-1]:.4g}" for c in curves)
    said = f"{counted(axes.steps, 'step')}. {words}."
    return drawing(parts, width=width, height=axes.bottom + _BOTTOM, title=title, description=said)


def place_names(names: Sequence[str], width: float) -> list[tuple[float, float]]:
    """Return where the names of the legend stand: side by side, and in a new line where the paper ends."""
    x, y, found = _LEFT, 20.0, list[tuple[float, float]]()
    for name in names:
        needed = 50 + _CHARACTER * len(name)
        if x > _LEFT and x + needed > width:
            x, y = _LEFT, y + _NAMES
        found.append((x, y))
        x += needed
    return found


def _thinned(curve: Curve) -> list[tuple[int, float]]:
    """Return (step, value) of at most some two thousand steps, the last included; one step makes a dot."""
    every = -(-len(curve.values) // 2000)
    points = list(enumerate(curve.values, start=1))
    return [*points[::every], points[-1]]


def _limits(values: Sequence[float]) -> tuple[float, float]:
    """Return the ends of the axis, which hold all positive values with a little air."""
    positive = [value for value in values if value > 0] or [1.0]
    return min(positive) / 1.15, max(positive) * 1.15


def _draw_axes(axes: _Axes) -> list[str]:
    parts, right = [], axes.width - _RIGHT
    for value in _decade_ticks(axes.low, axes.high):
        y = axes.y(value)
        parts.append(element("line", class_="tf-rule", x1=_LEFT, x2=right, y1=y, y2=y))
        parts.append(text(f"{value:g}", _LEFT - 8, y + 4, class_="tf-quiet", text_anchor="end", font_size=12))
    for step in _step_ticks(axes.steps):
        x, y = axes.x(step), axes.bottom + 18
        parts.append(text(str(step), x, y, class_="tf-quiet", text_anchor="middle", font_size=12))
    middle = (_LEFT + right) / 2
    parts.append(text("step", middle, axes.bottom + 36, class_="tf-quiet", text_anchor="middle", font_size=12))
    return parts


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


def draw_name(name: str, tone: int, spot: tuple[float, float], style: dict[str, float]) -> str:
    """Return an entry of the legend, a sample of its line before it."""
    x, y = spot
    swatch = element("line", class_="tf-line", x1=x, x2=x + 26, y1=y, y2=y, **style)
    return element("g", swatch, text(name, x + 34, y + 4), class_=f"tf-tone-{tone}")
