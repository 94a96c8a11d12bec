"""Charts as SVG, drawn by hand: curves over steps and sizes, and bars. They need no plotting library."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from treefold.errors.words import bytes_in_words, counted, seconds_in_words
from treefold.topology.drawing.svg import LIGHT, drawing, element, text, titled

_PLOT, _LEFT, _RIGHT, _BOTTOM = 300.0, 56.0, 28.0, 46.0
_NAMES, _CHARACTER = 22.0, 7.2
_ROW, _BAR, _TOP = 32.0, 18.0, 12.0  # of bars
_TIME, _SIZE = 70.0, 62.0  # room for a time beside a bar, and for a size below the axis
_DECADE = 10.0
_At = Callable[[float, float], tuple[float, float]]


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
    spots = _place_names([curve.name for curve in curves], width)
    axes = _Axes(width, spots[-1][1] + 22, low, high, max(len(curve.values) for curve in curves))
    parts = _draw_axes(axes)
    for index, (curve, spot) in enumerate(zip(curves, spots, strict=True)):
        points = " ".join(f"{axes.x(step):.1f},{axes.y(value):.1f}" for step, value in _thinned(curve))
        style = {"stroke_width": 6, "stroke_opacity": 0.45} if index == 0 else {"stroke_width": 1.6}
        line = element(
            "polyline", class_="tf-line", points=points, stroke_linejoin="round", stroke_linecap="round", **style
        )
        parts.append(element("g", titled(curve.name), line, class_=f"tf-curve tf-tone-{curve.tone}"))
        parts.append(_draw_name(curve.name, curve.tone, spot, style))
    words = "; ".join(f"{c.name}: from {c.values[0]:.4g} to {c.values[-1]:.4g}" for c in curves)
    said = f"{counted(axes.steps, 'step')}. {words}."
    return drawing(parts, width=width, height=axes.bottom + _BOTTOM, title=title, description=said)


def _place_names(names: Sequence[str], width: float) -> list[tuple[float, float]]:
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


def _draw_name(name: str, tone: int, spot: tuple[float, float], style: dict[str, float]) -> str:
    """Return an entry of the legend, a sample of its line before it."""
    x, y = spot
    swatch = element("line", class_="tf-line", x1=x, x2=x + 26, y1=y, y2=y, **style)
    return element("g", swatch, text(name, x + 34, y + 4), class_=f"tf-tone-{tone}")


def draw_bars(seconds: Mapping[str, float], *, title: str, width: float = 640.0) -> str:
    """Return a bar per name, as long as it takes, with the time behind it, as one SVG element."""
    left = 24 + _CHARACTER * max(map(len, seconds))
    scale = (width - left - _TIME) / max(seconds.values())
    parts = []
    for number, (name, value) in enumerate(seconds.items()):
        y, length = _TOP + number * _ROW, max(value * scale, 1.0)
        words = seconds_in_words(value)
        parts.append(
            element(
                "g",
                titled(f"{name}: {words}"),
                text(name, left - 10, y + 14, text_anchor="end"),
                element("rect", class_="tf-fill", x=left, y=y, width=length, height=_BAR, rx=3),
                text(words, left + length + 8, y + 14),
                class_=f"tf-bar tf-tone-{number % len(LIGHT)}",
            )
        )
    said = ", ".join(f"{name}: {seconds_in_words(value)}" for name, value in seconds.items())
    height = 2 * _TOP + _ROW * len(seconds) - (_ROW - _BAR)
    return drawing(parts, width=width, height=height, title=title, description=f"{said}.")


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
    spots = _place_names(list(points), width)
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
        parts.append(_draw_name(name, number % len(LIGHT), spots[number], {"stroke_width": 2}))
    words = [
        f"{name}: {', '.join(f'{bytes_in_words(s)} in {seconds_in_words(t)}' for s, t in found)}."
        for name, found in times.items()
    ]
    return drawing(
        parts,
        width=width,
        height=top + _PLOT + _BOTTOM,
        title=title,
        description=" ".join(words),
    )


def _draw_grid(at: _At, sizes: tuple[float, float], rates: tuple[int, float], *, right: float) -> list[str]:
    parts = []
    for power in range(rates[0], math.floor(rates[1]) + 1):
        y = at(2 ** sizes[0], _DECADE**power)[1]
        parts.append(element("line", class_="tf-rule", x1=_LEFT, x2=right, y1=y, y2=y))
        parts.append(text(f"{_DECADE**power:g}", _LEFT - 8, y + 4, class_="tf-quiet", text_anchor="end", font_size=11))
    step = max(1, math.ceil((sizes[1] - sizes[0]) * _SIZE / (right - _LEFT)))
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
