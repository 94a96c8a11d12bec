"""Seconds as bars, where a curve would have one point."""

from __future__ import annotations

from collections.abc import Mapping

from treefold.errors.words import seconds_in_words
from treefold.topology.drawing.svg import LIGHT, drawing, element, text, titled

_ROW, _BAR, _TOP, _RIGHT = 32.0, 18.0, 12.0, 70.0
_CHARACTER = 7.0


def draw_bars(seconds: Mapping[str, float], *, title: str, width: float = 640.0) -> str:
    """Return a bar per name, as long as it takes, with the time behind it, as one SVG element."""
    left = 24 + _CHARACTER * max(map(len, seconds))
    scale = (width - left - _RIGHT) / max(seconds.values())
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
