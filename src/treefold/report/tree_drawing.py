"""The trees of a packing side by side: each in the colour of its pack, its edges pointing to its root."""

from __future__ import annotations

import math

from treefold.devices import Device
from treefold.planners.tree_packing import Tree, TreePacking
from treefold.report.machine_layout import Layout
from treefold.report.svg import LIGHT, drawing, element, text, titled
from treefold.topology import Topology

_WIDTH, _HEIGHT, _GAP, _HEAD = 212.0, 142.0, 16.0, 26.0
_MARGIN, _DOT = 28.0, 9.5
MAX_TREES = 24

_Point = tuple[float, float]


def draw_trees(topology: Topology, layout: Layout, packing: TreePacking, *, width: float = 960.0) -> str:
    """Return all trees as one SVG element."""
    marks, height = tree_marks(topology, layout, packing, width=width)
    count = len(packing.trees)
    words = [f"Pack {number}: {_words(tree)}" for number, tree in enumerate(packing.trees)]
    title = f"{count} tree{'' if count == 1 else 's'} on {topology.name or 'the machine'}"
    return drawing([marks], width=width, height=height + _MARGIN, title=title, description=" ".join(words))


def tree_marks(
    topology: Topology, layout: Layout, packing: TreePacking, *, width: float, top: float = 0.0
) -> tuple[str, float]:
    """Return the marks of the trees with the largest shares, laid out in rows, and where they end."""
    order = sorted(range(len(packing.trees)), key=lambda number: -packing.trees[number].share)[:MAX_TREES]
    shown = sorted(order)
    columns = max(1, int((width - 2 * _MARGIN + _GAP) / (_WIDTH + _GAP)))
    points = _points(topology, layout, packing)
    parts, pitch = list[str](), _HEIGHT + _HEAD + _GAP
    for index, number in enumerate(shown):
        x = _MARGIN + (index % columns) * (_WIDTH + _GAP)
        y = top + _MARGIN + (index // columns) * pitch
        tree = _tree(packing.trees[number], number, points)
        parts.append(element("g", tree, transform=f"translate({x:.1f} {y:.1f})"))
    bottom = top + _MARGIN + -(-len(shown) // columns) * pitch
    hidden = len(packing.trees) - len(shown)
    if hidden:
        parts.append(text(f"{hidden} more trees, of smaller shares, not drawn.", _MARGIN, bottom, class_="tf-quiet"))
        bottom += _HEAD
    return element("g", *parts, class_="tf-trees"), bottom


def tone(pack: int) -> str:
    """Return the class of a pack's colour; there are as many colours as a reader tells apart."""
    return f"tf-tone-{pack % len(LIGHT)}"


def _words(tree: Tree) -> str:
    edges = ", ".join(f"{sender} to {receiver}" for sender, receiver in tree.pairs)
    return f"{float(tree.share):.2%} of the values, root {tree.root}; {edges}."


def _points(topology: Topology, layout: Layout, packing: TreePacking) -> dict[str, _Point]:
    """Return where devices stand in a small drawing: as in the large one, or around a circle where a bar joins them."""
    if all(kind == "device" for kind in topology.kinds.values()):
        raw = {name: (layout.boxes[name].x, layout.boxes[name].y) for name in packing.devices}
    else:
        count = len(packing.devices)
        angles = [2 * math.pi * number / count - math.pi / 2 for number in range(count)]
        raw = {n: (math.cos(a), 0.72 * math.sin(a)) for n, a in zip(packing.devices, angles, strict=True)}
    low = [min(point[axis] for point in raw.values()) for axis in (0, 1)]
    span = [max(max(point[axis] for point in raw.values()) - low[axis], 1e-9) for axis in (0, 1)]
    room = (_WIDTH - 4 * _DOT, _HEIGHT - 4 * _DOT)
    scale = min(room[0] / span[0], room[1] / span[1])
    edge = [(size - extent * scale) / 2 for size, extent in zip((_WIDTH, _HEIGHT), span, strict=True)]
    return {
        name: (edge[0] + (x - low[0]) * scale, _HEAD + edge[1] + (y - low[1]) * scale) for name, (x, y) in raw.items()
    }


def _tree(tree: Tree, number: int, points: dict[str, _Point]) -> str:
    head = f"pack {number}: {float(tree.share):.1%}"
    parts = [
        titled(f"pack {number}: {_words(tree)}"),
        element("rect", class_="tf-frame", x=0, y=0, width=_WIDTH, height=_HEIGHT + _HEAD, rx=8),
        text(head, 10, 18, class_="tf-tone-text tf-strong", font_size=12),
        text(f"depth {tree.depth}", _WIDTH - 10, 18, class_="tf-quiet", text_anchor="end", font_size=11),
    ]
    dot = min(_DOT, 64.0 / math.sqrt(len(points)))
    parts += [_edge(points[sender], points[receiver], dot) for sender, receiver in tree.pairs]
    for name, (x, middle) in points.items():
        is_root = name == tree.root
        label = str(Device.parse(name).index)
        parts.append(
            element("circle", class_="tf-fill" if is_root else "tf-ring", cx=x, cy=middle, r=dot, stroke_width=1.2)
        )
        ink = "tf-on" if is_root else "tf-ink"
        parts.append(text(label, x, middle + dot * 0.4, class_=ink, font_size=dot * 1.1, text_anchor="middle"))
    return element("g", *parts, class_=f"tf-tree {tone(number)}", data_pack=number)


def _edge(start: _Point, end: _Point, dot: float) -> str:
    """Draw an edge between two dots, with its head at the end."""
    (x1, y1), (x2, y2) = start, end
    length = math.hypot(x2 - x1, y2 - y1) or 1.0
    ux, uy = (x2 - x1) / length, (y2 - y1) / length
    tip = (x2 - ux * (dot + 1.5), y2 - uy * (dot + 1.5))
    back = (tip[0] - ux * 8, tip[1] - uy * 8)
    corners = (tip, (back[0] - uy * 4, back[1] + ux * 4), (back[0] + uy * 4, back[1] - ux * 4))
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
    line = element("line", class_="tf-line", x1=x1, y1=y1, x2=tip[0] - ux * 5, y2=tip[1] - uy * 5, stroke_width=2.4)
    return line + element("polygon", class_="tf-fill", points=points)
