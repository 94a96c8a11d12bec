"""Drawings and pages: machines, trees, movements, timelines."""

from __future__ import annotations

from typing import Any

from treefold.plan.movement import register_drawing


def _draw_movement(movement: Any, title: str) -> str:
    from treefold.topology.drawing.plan_drawing import draw_movement  # noqa: PLC0415 - only notebooks draw

    return draw_movement(movement, title=title)


def _draw_machine(machine: Any) -> str:
    from treefold.topology.drawing.machine_drawing import draw_machine  # noqa: PLC0415 - as above

    return draw_machine(machine)


def _draw_packing(packing: Any) -> str:
    from treefold.topology.drawing.tree_drawing import draw_bare_packing  # noqa: PLC0415 - as above

    return draw_bare_packing(packing)


def register_drawings() -> None:
    """Let notebooks draw movements, machines and packings."""
    register_drawing("movement", _draw_movement)
    register_drawing("machine", _draw_machine)
    register_drawing("packing", _draw_packing)
