"""What notebooks show: rooms that draw stand above what is drawn, and register themselves when they are loaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_DRAWINGS: dict[str, Callable[..., str]] = {}


def register(kind: str, draw: Callable[..., str]) -> None:
    """Let a function draw values of a kind: ``"movement"``, ``"machine"`` or ``"packing"``."""
    _DRAWINGS[kind] = draw


def drawn(kind: str, value: Any, **options: str) -> str | None:
    """Return the drawing of a value, or None, for which notebooks show text, where nothing draws its kind."""
    draw = _DRAWINGS.get(kind)
    return None if draw is None else draw(value, **options)
