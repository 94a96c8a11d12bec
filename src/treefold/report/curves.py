"""Curves over steps as SVG, drawn by hand: two polylines and a few ticks need no plotting library."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from treefold.report.svg import drawing, element, text, titled

_WIDTH, _HEIGHT = 860.0, 340.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 64.0, 20.0, 48.0, 46.0


@dataclass(frozen=True, slots=True)
class Curve:
    """One value per step, and the name it has in the legend."""

    name: str
    values: tuple[float, ...]


def draw_curves(curves: Sequence[Curve], *, title: str) -> str:
    """Return curves over the number of the step, on a logarithmic axis.

    Values that are not positive lie on the lower end of the axis.
    The first curve is drawn broad and pale, later ones thin and above it, so that curves that coincide are all seen.
    """
    values = [value for curve in curves for value in curve.values]
    low, high = _limits(values)
    steps = max(len(curve.values) for curve in curves)
    parts = _draw_axes(low, high, steps=steps)
    for index, curve in enumerate(curves):
        points = " ".join(f"{_x(step, steps):.1f},{_y(value, low, high):.1f}" for step, value in _thinned(curve))
        style = {"stroke_width": 6, "stroke_opacity": 0.45} if index == 0 else {"stroke_width": 1.6}
        line = element(
            "polyline", class_="tf-line", points=points, stroke_linejoin="round", stroke_linecap="round", **style
        )
        parts.append(element("g", titled(curve.name), line, class_=f"tf-curve tf-tone-{index}"))
        parts.append(_draw_name(curve.name, index, style))
    words = "; ".join(f"{c.name}: from {c.values[0]:.4g} to {c.values[-1]:.4g}" for c in curves)
    return drawing(parts, width=_WIDTH, height=_HEIGHT, title=title, description=f"{steps} steps. {words}.")


def _thinned(curve: Curve) -> list[tuple[int, float]]:
    """Return (step, value) of at most some two thousand steps, the last included; one step makes a dot."""
    every = -(-len(curve.values) // 2000)
    points = list(enumerate(curve.values, start=1))
    return [*points[::every], points[-1]]


def _limits(values: Sequence[float]) -> tuple[float, float]:
    """Return the ends of the axis, which hold all positive values with a little air."""
    positive = [value for value in values if value > 0] or [1.0]
    return min(positive) / 1.15, max(positive) * 1.15


def _x(step: float, steps: int) -> float:
    return _LEFT + (_WIDTH - _LEFT - _RIGHT) * ((step - 1) / max(1, steps - 1))


def _y(value: float, low: float, high: float) -> float:
    share = math.log(max(value, low) / low) / math.log(high / low)
    return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)


def _draw_axes(low: float, high: float, *, steps: int) -> list[str]:
    parts = []
    for value in _decade_ticks(low, high):
        y = _y(value, low, high)
        parts.append(element("line", class_="tf-rule", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=y, y2=y))
        parts.append(text(f"{value:g}", _LEFT - 8, y + 4, class_="tf-quiet", text_anchor="end", font_size=12))
    for step in _step_ticks(steps):
        x, y = _x(step, steps), _HEIGHT - _BOTTOM + 18
        parts.append(text(str(step), x, y, class_="tf-quiet", text_anchor="middle", font_size=12))
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(text("step", middle, _HEIGHT - 10, class_="tf-quiet", text_anchor="middle", font_size=12))
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


def _draw_name(name: str, index: int, style: dict[str, float]) -> str:
    x, y = _LEFT + 200 * index, 24.0
    swatch = element("line", class_="tf-line", x1=x, x2=x + 26, y1=y - 4, y2=y - 4, **style)
    return element("g", swatch, text(name, x + 34, y), class_=f"tf-tone-{index}")
