"""The trees of a plan side by side, one per shape, in the colour of the pack; edges point to the root."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from treefold.devices import Device
from treefold.errors.words import counted
from treefold.keyed import grouped
from treefold.topology.drawing.machine_drawing import STYLE
from treefold.topology.drawing.machine_layout import on_a_circle
from treefold.topology.drawing.packs import DrawnPack, PackGroup, group_packs
from treefold.topology.drawing.svg import LIGHT, arrow, drawing, element, text, titled
from treefold.topology.graph import Topology, TopologyBuilder
from treefold.topology.planning.ring import host_groups
from treefold.topology.planning.tree_packing import TreePacking

_WIDTH, _HEIGHT, _GAP, _HEAD = 212.0, 142.0, 16.0, 26.0
_MARGIN, _DOT, _STRETCH, _PAPER = 28.0, 9.5, 1.5, 960.0
MAX_TREES = 24

_Point = tuple[float, float]


def draw_trees(topology: Topology, packs: Sequence[DrawnPack], *, width: float = _PAPER) -> str:
    """Return the trees of these packs as one SVG element; packs of one shape share one tree."""
    marks, height = tree_marks(topology, packs, width=width)
    words = [f"Pack {number}: {_words(pack)}" for number, pack in enumerate(packs)]
    title = f"{counted(len(packs), 'tree')} on {topology.name or 'the machine'}"
    parts = [element("style", STYLE), marks]
    return drawing(parts, width=width, height=height + _MARGIN, title=title, description=" ".join(words))


def tree_marks(topology: Topology, packs: Sequence[DrawnPack], *, width: float, top: float = 0.0) -> tuple[str, float]:
    """Return the marks of the trees with the largest shares, laid out in rows, and their lower end."""
    hosts = hosts_of(topology)
    groups = group_packs(packs, hosts)
    columns = max(1, int((width - 2 * _MARGIN + _GAP) / (_WIDTH + _GAP)))
    points = _points(topology, hosts)
    parts, pitch = list[str](), _HEIGHT + _HEAD + _GAP
    for index, group in enumerate(groups[:MAX_TREES]):
        x = _MARGIN + (index % columns) * (_WIDTH + _GAP)
        y = top + _MARGIN + (index // columns) * pitch
        parts.append(element("g", _tree(group, points), transform=f"translate({x:.1f} {y:.1f})"))
    bottom = top + _MARGIN + -(-len(groups[:MAX_TREES]) // columns) * pitch
    hidden = sum(len(group.packs) for group in groups[MAX_TREES:])
    if hidden:
        parts.append(
            text(f"{counted(hidden, 'more tree')}, with less to carry, not drawn.", _MARGIN, bottom, class_="tf-quiet")
        )
        bottom += _HEAD
    return element("g", *parts, class_="tf-trees"), bottom


def tone(pack: int) -> str:
    """Return the class of a pack's colour; there are as many colours as a reader tells apart."""
    return f"tf-tone-{pack % len(LIGHT)}"


def _words(pack: DrawnPack) -> str:
    edges = ", ".join(f"{sender} to {receiver}" for sender, receiver in pack.pairs)
    root = f"root {pack.root}" if pack.root is not None else "every device folds for itself"
    return f"{pack.share:.2%} of the values, {root}; {edges}."


def hosts_of(topology: Topology) -> list[tuple[str, ...]]:
    """Return the devices by host; on a single host, by the socket nearest over switches, if every device has one."""
    hosts = [tuple(devices) for devices in host_groups(topology)]
    sockets = grouped((_socket(topology, device), device) for device in topology.devices)
    return hosts if len(hosts) > 1 or None in sockets else [tuple(devices) for devices in sockets.values()]


def _socket(topology: Topology, device: str) -> str | None:
    todo = [device]
    for name in todo:
        if topology.kinds[name] == "host":
            return name
        todo += [o for o in topology.neighbours(name) if topology.kinds[o] != "device" and o not in todo]
    return None


def _points(topology: Topology, hosts: Sequence[Sequence[str]]) -> dict[str, _Point]:
    """Return the positions of devices in a small drawing: a circle per host, in the order of the large one."""
    groups = hosts if any(len(devices) > 1 for devices in hosts) else [topology.devices]
    columns = math.ceil(math.sqrt(len(groups)))
    width, height = _WIDTH / columns, _HEIGHT / -(-len(groups) // columns)
    across, up = width / 2 - 2 * _DOT, height / 2 - 2 * _DOT
    across, up = min(across, _STRETCH * up), min(up, _STRETCH * across)
    points: dict[str, _Point] = {}
    for number, devices in enumerate(groups):
        left, top = (number % columns + 0.5) * width, _HEAD + (number // columns + 0.5) * height
        circle = on_a_circle(topology, devices)
        points |= {name: (left + across * x, top + up * y) for name, (x, y) in circle.items()}
    return points


def _tree(group: PackGroup, points: Mapping[str, _Point]) -> str:
    number, pack = group.numbers[0], group.packs[0]
    more = len(group.packs) - 1
    words = f" {more} more of this shape." if more else ""
    shape = ",".join(map(str, group.numbers))
    dot = min(_DOT, 0.42 * _nearest(points))
    parts = [
        titled(f"{group.title}. Pack {number}: {_words(pack)}{words}"),
        element("rect", class_="tf-frame", x=0, y=0, width=_WIDTH, height=_HEIGHT + _HEAD, rx=8),
        text(group.title, 10, 18, class_="tf-tone-text tf-strong", font_size=12),
        text(f"depth {pack.depth}", _WIDTH - 10, 18, class_="tf-quiet", text_anchor="end", font_size=11),
    ]
    parts += [arrow(points[a], points[b], gap=dot + 1.5, head=8, thick=2.4) for a, b in pack.pairs]
    for name, (x, middle) in points.items():
        is_root = name == pack.root
        label = str(Device.parse(name).index)
        parts.append(
            element("circle", class_="tf-fill" if is_root else "tf-ring", cx=x, cy=middle, r=dot, stroke_width=1.2)
        )
        ink, size = "tf-on" if is_root else "tf-ink", min(11.0, dot * 1.25)
        parts.append(text(label, x, middle + size * 0.36, class_=ink, font_size=size, text_anchor="middle"))
    return element("g", *parts, class_=f"tf-tree {tone(number)}", data_pack=number, data_packs=shape)


def _nearest(points: Mapping[str, _Point]) -> float:
    """Return the distance of the two points that are nearest to each other."""
    return min((math.dist(a, b) for a, b in itertools.combinations(points.values(), 2)), default=2 * _WIDTH)


def draw_bare_packing(packing: TreePacking) -> str:
    """Return the trees of a packing as one SVG element, without a machine; devices are placed by the trees' edges."""
    packs = [DrawnPack(float(tree.share), tree.root, tree.pairs) for tree in packing.trees]
    return draw_trees(_edges(packing), packs)


def _edges(packing: TreePacking) -> Topology:
    """Return the trees' edges as a machine; the nodes between devices may be switches or hosts, which is not known."""
    builder = TopologyBuilder(counted(len(packing.devices), "device"))
    for device in packing.devices:
        builder.device(device)
    for one, other in sorted({(min(pair), max(pair)) for tree in packing.trees for pair in tree.pairs}):
        builder.link(one, other, gb_per_s=1)
    return builder.build()
