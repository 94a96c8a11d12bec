"""What layouts are made of: boxes, frames around hosts, the paper they stand on, and how far things are apart."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_ADDRESS = re.compile(r"(?:[0-9a-f]+:)?([0-9a-f]{2}:[0-9a-f]{2})\.[0-9a-f]")
DEVICE = (56.0, 34.0)  # width and height
STEP, ROW, LANE, BAR = 64.0, 84.0, 40.0, 26.0
MARGIN, GROUP, BETWEEN_HOSTS = 28.0, 26.0, 24.0


@dataclass(frozen=True, slots=True)
class Box:
    """A node on paper: its middle and its size."""

    x: float
    y: float
    width: float
    height: float
    kind: str


@dataclass(frozen=True, slots=True)
class Group:
    """A frame around what one host holds."""

    label: str
    left: float
    top: float
    right: float
    bottom: float


@dataclass(frozen=True)
class Layout:
    """Boxes by the nodes' names, frames, the size of the paper, and the lines between boxes.

    ``lines``: by (source, target) in the direction that was mentioned first, the ``d`` of an SVG path.
    """

    width: float
    height: float
    boxes: dict[str, Box]
    groups: tuple[Group, ...]
    lines: dict[tuple[str, str], str]


def label(name: str) -> str:
    """Return what stands in a box: a name without what is the same in most of them.

    >>> label("pci 0000:1b:00.0"), label("host0.nic3"), label("nic mlx5_0"), label("nic 0000:3b:00.0")
    ('pci 1b:00', 'nic3', 'mlx5_0', 'nic')
    """
    kind, _, rest = name.partition(" ")
    if _ADDRESS.search(rest):
        return kind if kind == "nic" else _ADDRESS.sub(r"\1", name)
    return rest if kind == "nic" and rest else name.partition(".")[2] or name


def frame(label: str, boxes: Iterable[Box]) -> Group:
    """Return the frame around what one host holds, with room for its name above."""
    found = list(boxes)
    left, top = min(b.x - b.width / 2 for b in found), min(b.y - b.height / 2 for b in found)
    right, bottom = max(b.x + b.width / 2 for b in found), max(b.y + b.height / 2 for b in found)
    return Group(label, left - GROUP, top - GROUP - 14, right + GROUP, bottom + GROUP * 0.7)
