"""The layout of a machine on paper, in layers.

Devices stand in a row. The carriers that join them stand above, hosts on top. Carriers that join devices only, their
NICs and the network stand below. If devices are joined by direct links alone, their row is bent to an ellipse.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from treefold.topology.graph import Topology, joined_groups, reached_from

#: A drawing of this width is shown at ``svg.NARROWEST`` of its size on a page of 1280 pixels, which leave it 1048.
WIDEST = 1276.0
MARGIN = 28.0
_DEVICE, _NIC, _BAR = (56.0, 34.0), (48.0, 22.0), 26.0  # Width and height; bars are as wide as what they join.
_BETWEEN, _APART, _ROW, _LANE = 8.0, 18.0, 84.0, 40.0  # From box to box, group, layer, and bar of one layer.
_IN_A_ROW = 18  # Devices and NICs; if there are more, every second stands lower.
_ON_A_CIRCLE, _LARGEST = 44, 570.0  # Devices; if there are more, every second or third stands further in.
_FRAME, _WIRE = 22.0, 5.0  # between a host and its frame, and between parallel wires
_ADDRESS = re.compile(r"(?:[0-9a-f]+:)?([0-9a-f]{2}:[0-9a-f]{2})\.[0-9a-f]")

Point = tuple[float, float]
Ends = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Box:
    """A node or a frame on paper: its middle and its size."""

    x: float
    y: float
    width: float
    height: float
    kind: str

    @property
    def left(self) -> float:
        """The x coordinate of its left edge."""
        return self.x - self.width / 2

    @property
    def right(self) -> float:
        """The x coordinate of its right edge."""
        return self.x + self.width / 2

    @property
    def top(self) -> float:
        """The y coordinate of its upper edge."""
        return self.y - self.height / 2

    @property
    def bottom(self) -> float:
        """The y coordinate of its lower edge."""
        return self.y + self.height / 2

    def moved(self, right: float, down: float) -> Box:
        """Return this box at another position."""
        return replace(self, x=self.x + right, y=self.y + down)


@dataclass(frozen=True)
class MachineLayout:
    """A machine on paper: its size, boxes by node, frames around hosts by label, and lines by link.

    Attributes:
        lines: The corners of each line, by (source, target) in the direction that was mentioned first. Four points are
            those of a curve.

    """

    width: float
    height: float
    boxes: dict[str, Box]
    frames: dict[str, Box]
    lines: dict[Ends, tuple[Point, ...]]


def lay_out(topology: Topology) -> MachineLayout:
    """Return the layout of a machine. The same machine always gets the same layout."""
    network = _network(topology)
    hosts = [_lay_out_host(topology, names) for names in _hosts(topology, network)]
    boxes, frames, wires = _in_rows(topology, hosts, network)
    order = {name: number for number, name in enumerate(topology.kinds)}
    pairs = [(a, b) for a, b in topology.capacities if order[a] < order[b] or (b, a) not in topology.capacities]
    lines = {(a, b): wires.get((a, b)) or wires.get((b, a), ())[::-1] or _line(boxes, a, b) for a, b in pairs}
    corners = [Box(x, y, 0, 0, "") for line in lines.values() for x, y in line]
    paper = _around([*boxes.values(), *frames.values(), *corners], MARGIN)
    return MachineLayout(
        paper.width,
        paper.height,
        {name: boxes[name].moved(-paper.left, -paper.top) for name in topology.kinds},
        {label: frame.moved(-paper.left, -paper.top) for label, frame in frames.items()},
        {pair: tuple((x - paper.left, y - paper.top) for x, y in line) for pair, line in lines.items()},
    )


def _around(boxes: Collection[Box], margin: float) -> Box:
    left, right = min(box.left for box in boxes) - margin, max(box.right for box in boxes) + margin
    top, bottom = min(box.top for box in boxes) - margin, max(box.bottom for box in boxes) + margin
    return Box((left + right) / 2, (top + bottom) / 2, right - left, bottom - top, "frame")


def _network(topology: Topology) -> list[str]:
    """Return the carriers that devices reach through NICs only."""
    near = reached_from(topology.devices, lambda name: topology.neighbours(name) * (topology.kinds[name] != "nic"))
    return [name for name in topology.kinds if name not in near]


def _hosts(topology: Topology, network: Collection[str]) -> list[list[str]]:
    """Return groups of nodes that are joined without the network: one per host, or one in all if there are no NICs."""
    names = [name for name in topology.kinds if name not in network]
    return joined_groups(names, lambda name: set(topology.neighbours(name)).difference(network))


def _lay_out_host(topology: Topology, names: Sequence[str]) -> dict[str, Box]:
    """Return the boxes of one host, layer by layer, with its devices around y = 0."""
    carriers = [name for name in names if topology.kinds[name] in {"host", "switch"}]
    fabrics = [name for name in carriers if set(topology.neighbours(name)) <= set(topology.devices)]
    upper = [name for name in carriers if name not in fabrics] or fabrics
    depths = _depths(topology, upper)
    boxes = _leaves(topology, names, depths) if carriers else _ellipse(topology, names)
    for depth in sorted(set(depths.values()), reverse=True):
        layer = [name for name in upper if depths[name] == depth]
        boxes |= _bars(topology, layer, boxes, min(box.y for box in boxes.values()) - _ROW, -_LANE)
    if upper is not fabrics:
        boxes |= _bars(topology, fabrics, boxes, max(box.y for box in boxes.values()) + _ROW, _LANE)
    nics = [name for name in names if name not in boxes]
    return boxes | _below(topology, nics, boxes, max((box.y for box in boxes.values()), default=0.0) + 0.8 * _ROW)


def _depths(topology: Topology, names: Sequence[str]) -> dict[str, int]:
    """Return how many layers below the hosts each carrier stands; carriers that join only hosts stand above them."""
    order = [name for name in names if topology.kinds[name] == "host"] or list(names[:1])
    joins = [name for name in names if name not in order and set(topology.neighbours(name)) <= set(order)]
    depths = dict.fromkeys(order, 0) | dict.fromkeys(joins, -1)
    for name in order:
        below = [other for other in topology.neighbours(name) if other in names and other not in depths]
        depths |= dict.fromkeys(below, depths[name] + 1)
        order += below
    return dict.fromkeys(names, 0) | depths


def _leaves(topology: Topology, names: Sequence[str], depths: dict[str, int]) -> dict[str, Box]:
    """Return a row of devices, and of NICs that are linked to a carrier; those below one carrier stand together."""
    kinds, boxes, x, last = topology.kinds, dict[str, Box](), -_APART, [""]
    leaves = {name for name in names if kinds[name] == "device"}
    leaves |= {name for name in names if kinds[name] == "nic" and depths.keys() & set(topology.neighbours(name))}
    seen, place = set[str](), {name: number for number, name in enumerate(names)}
    roots = sorted(depths, key=lambda name: (depths[name], place[name]))
    todo = [(name, "") for name in reversed([*roots, *names])]
    while todo:
        name, above = todo.pop()
        if name in depths and name not in seen:
            below = [o for o in topology.neighbours(name) if o in leaves or depths.get(o, -1) > depths[name]]
            todo += [(other, name) for other in sorted(below, key=place.__getitem__, reverse=True)]
        elif name in leaves and name not in seen:
            width, height = _DEVICE if kinds[name] == "device" else _NIC
            if above != last[0]:
                x, last = max((box.right for box in boxes.values()), default=-_APART) + _APART, [above]
            is_staggered = len(leaves) > _IN_A_ROW
            boxes[name] = Box(x + width / 2, _LANE * (is_staggered and len(last) % 2 == 0), width, height, kinds[name])
            x += (width + _BETWEEN) / (1 + is_staggered)
            last.append(name)
        seen.add(name)
    return boxes


def _ellipse(topology: Topology, names: Sequence[str]) -> dict[str, Box]:
    points = on_a_circle(topology, [name for name in names if topology.kinds[name] == "device"])
    across = min(50.0 + 16.0 * len(points), _LARGEST)
    return {name: Box(across * x, 0.72 * across * y, *_DEVICE, "device") for name, (x, y) in points.items()}


def on_a_circle(topology: Topology, devices: Sequence[str]) -> dict[str, Point]:
    """Return a point with coordinates from -1 to 1 for each device; neighbours are devices with a wide link."""
    order = sorted(devices, key=lambda name: len(topology.neighbours(name)))[:1]
    while len(order) < len(devices):
        left = [name for name in devices if name not in order]
        order.append(max(left, key=lambda name: topology.capacity(order[-1], name)))
    points = {}
    for number, name in enumerate(order):
        angle = 2 * math.pi * (number - 0.5) / len(order) - math.pi / 2
        radius = (len(order) > 1) * (1 - 0.12 * (number % math.ceil(len(order) / _ON_A_CIRCLE)))
        points[name] = radius * math.cos(angle), radius * math.sin(angle)
    return points


def _bars(topology: Topology, names: Iterable[str], boxes: dict[str, Box], y: float, lane: float) -> dict[str, Box]:
    """Return carriers as bars over or under what they join; bars that would overlap take further lanes."""
    spans = []
    for name in names:
        joined = [boxes[other] for other in topology.neighbours(name) if other in boxes]
        span = _around(joined or [Box(0, 0, 0, 0, "")], 0)
        width = max(span.width, min(24 + 7.2 * len(label(name)), _DEVICE[0]))
        spans.append((span.x - width / 2, width, name))
    bars, ends = dict[str, Box](), list[float]()
    for left, width, name in sorted(spans):
        row = next((number for number, end in enumerate(ends) if end + _BETWEEN <= left), len(ends))
        ends[row:] = [left + width, *ends[row + 1 :]]
        bars[name] = Box(left + width / 2, y + row * lane, width, _BAR, topology.kinds[name])
    return bars


def _below(topology: Topology, nics: Sequence[str], boxes: dict[str, Box], y: float) -> dict[str, Box]:
    """Return NICs below the devices that they are linked to, without overlaps."""
    around = {nic: [boxes[name].x for name in topology.neighbours(nic) if name in boxes] for nic in nics}
    wanted = sorted((sum(xs) / max(len(xs), 1), nic) for nic, xs in around.items())
    found, x = dict[str, Box](), -math.inf
    for above, nic in wanted:
        x = max(above, x + _NIC[0] + _BETWEEN)
        found[nic] = Box(x, y, *_NIC, "nic")
    # Pushed to the right so that none overlap, then back by as much as they were pushed in the mean.
    pushed = sum(found[nic].x - above for above, nic in wanted) / max(len(nics), 1)
    return {nic: box.moved(-pushed, 0) for nic, box in found.items()}


def _in_rows(
    topology: Topology, hosts: Sequence[dict[str, Box]], network: Sequence[str]
) -> tuple[dict[str, Box], dict[str, Box], dict[Ends, tuple[Point, ...]]]:
    """Return boxes, frames and wires: hosts in as few rows as fit, and the network below them as a wiring diagram.

    A carrier of the network has a lane under each row of hosts, a trunk beside them that joins the lanes, and a box
    under the last. A NIC's wire goes down to the lane, along lanes and trunk, and down to the box: behind no host.
    """
    nics = {name: [nic for nic in topology.neighbours(name) if topology.kinds[nic] == "nic"] for name in network}
    wired = [name for name in network if nics[name]]
    around = [_around(host.values(), _FRAME) for host in hosts]
    pitch, bundle = max(frame.width for frame in around) + _APART, _WIRE * len(wired) + _APART
    rows = math.ceil(len(hosts) / max(1, int((WIDEST - 2 * MARGIN - bundle) / pitch)))
    columns = math.ceil(len(hosts) / rows)
    boxes, frames, lanes, bottom = dict[str, Box](), dict[str, Box](), dict[Ends, float](), -bundle
    for start in range(0, len(hosts), columns):
        top = bottom + bundle + _APART
        for number, host in enumerate(hosts[start : start + columns], start):
            right, down = (number - start) * pitch - around[number].left, top - around[number].top
            boxes |= {name: box.moved(right, down) for name, box in host.items()}
            frames[f"host {number}"] = around[number].moved(right, down)
        bottom = max(frame.bottom for frame in frames.values()) + _APART
        new = [(nic, name) for name in wired for nic in nics[name] if nic in boxes and (nic, name) not in lanes]
        lanes |= {(nic, name): bottom + _WIRE * wired.index(name) for nic, name in new}
    width = columns * pitch
    step = min(_DEVICE[0] + _BETWEEN, width / max(len(wired), 1))
    for number, name in enumerate(wired):
        x = width / 2 + step * (number - (len(wired) - 1) / 2)
        boxes[name] = Box(x, bottom + bundle + _BAR / 2, step - _BETWEEN, _BAR, topology.kinds[name])
    boxes |= _bars(topology, [name for name in network if not nics[name]], boxes, bottom + bundle + _ROW, _LANE)
    wires = dict[Ends, tuple[Point, ...]]()
    for (nic, name), lane in lanes.items():
        first, end, spread = boxes[nic], boxes[name], _WIRE * wired.index(name)
        trunk = end.x if lane == bottom + spread else width + spread
        wire = ((first.x, first.bottom), (first.x, lane), (trunk, lane), (trunk, bottom + spread))
        wires[nic, name] = (*wire, (end.x, bottom + spread), (end.x, end.top))
    return boxes, frames if len(hosts) > 1 else {}, wires


def _line(boxes: dict[str, Box], a: str, b: str) -> tuple[Point, ...]:
    """Return the line between two boxes: straight, or a curve around the boxes that stand between them."""
    one, other = boxes[a], boxes[b]
    low, high = sorted((one.x, other.x))
    if one.y == other.y and any(box.y == one.y and low < box.x < high for box in boxes.values()):
        down = 1 if one.kind == "device" else -1
        y, bend = one.y + down * one.height / 2, down * (30.0 + 0.16 * (high - low))
        return (one.x, y), (one.x, y + bend), (other.x, y + bend), (other.x, y)
    return _end(one, other), _end(other, one)


def _end(box: Box, other: Box) -> Point:
    """Return the start of a line to another box: at the edge between two devices, else straight up or down."""
    if box.kind == other.kind == "device":
        dx, dy = other.x - box.x, other.y - box.y
        part = 0.5 / max(abs(dx) / box.width, abs(dy) / box.height)
        return box.x + part * dx, box.y + part * dy
    is_bar = box.kind in {"host", "switch"} and box.width >= other.width
    is_beside = abs(box.y - other.y) <= (box.height + other.height) / 2
    x = min(max(other.x, box.left), box.right) if is_bar else box.x
    return x, box.y if is_beside else box.bottom if other.y > box.y else box.top


def label(name: str) -> str:
    """Return the text in a box: a name without what most names share.

    >>> label("pci 0000:1b:00.0"), label("host0.nic3"), label("nic mlx5_0"), label("nic 0000:3b:00.0")
    ('pci 1b:00', 'nic3', 'mlx5_0', 'nic')
    """
    kind, _, rest = name.partition(" ")
    if _ADDRESS.search(rest):
        return kind if kind == "nic" else _ADDRESS.sub(r"\1", name)
    return rest if kind == "nic" and rest else name.partition(".")[2] or name
