"""The layout of a machine on paper, as a person would draw it.

Devices stand in a row with what joins them above it, NICs and the network below; devices that are only joined by links
of their own stand as their graph asks for (``direct_layout``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from treefold.topology.drawing.boxes import (
    BAR,
    BETWEEN_HOSTS,
    DEVICE,
    GROUP,
    LANE,
    MARGIN,
    ROW,
    STEP,
    Box,
    Layout,
    frame,
    label,
)
from treefold.topology.drawing.direct_layout import lay_out_directly
from treefold.topology.drawing.host_rows import WIDEST, Rows, in_rows
from treefold.topology.graph import Topology, reached_from

_NIC, _BETWEEN_SWITCHES = (48.0, 22.0), 18.0


@dataclass(slots=True)
class _Island:
    """What is joined without the network: one host, or all of a machine that has no NICs."""

    topology: Topology
    names: list[str]
    boxes: dict[str, Box] = field(default_factory=dict)

    def of_kind(self, *kinds: str) -> list[str]:
        return [name for name in self.names if self.topology.kinds[name] in kinds]


def lay_out(topology: Topology) -> Layout:
    """Return the layout of a machine; the same machine is always laid out alike."""
    network = _network(topology)
    hosts = [_lay_out_island(island) for island in _islands(topology, network)]
    carriers = [name for name in topology.kinds if name in network]
    rows = _in_one_row(hosts)
    if len(hosts) > 1 and max(group.right for group in rows.groups) + MARGIN > WIDEST:
        rows = in_rows(topology, hosts, carriers)
    bottom = max(_ends(rows)) + (GROUP * 0.3 if rows.groups else 0.0)
    left = [name for name in carriers if name not in rows.boxes]
    boxes = rows.boxes | _bars(topology, left, rows.boxes, bottom + LANE)
    pairs = [pair for pair in topology.capacities if not _is_second(topology, *pair)]
    ends = [*_ends(Rows(boxes, rows.groups)), *(y for a, b in pairs for y in _reach(boxes, a, b))]
    shift = MARGIN - min(ends)
    rights = [*(box.x + box.width / 2 for box in boxes.values()), *(group.right for group in rows.groups)]
    right = max(rights + [x for wire in rows.wires.values() for x, _ in wire])
    boxes = {name: replace(boxes[name], y=boxes[name].y + shift) for name in topology.kinds}
    groups = tuple(replace(g, top=g.top + shift, bottom=g.bottom + shift) for g in rows.groups)
    wires = {pair: [(x, y + shift) for x, y in wire] for pair, wire in rows.wires.items()}
    lines = {(a, b): _wire(wires, a, b) or _line(boxes, a, b) for a, b in pairs}
    return Layout(right + MARGIN, max(ends) + shift + MARGIN, boxes, groups, lines)


def _in_one_row(hosts: Sequence[Mapping[str, Box]]) -> Rows:
    """Return hosts side by side, each in a frame; a machine of one host has none."""
    is_grouped = len(hosts) > 1
    left, rows = MARGIN + GROUP * is_grouped, Rows()
    for number, host in enumerate(hosts):
        right = left - min(box.x - box.width / 2 for box in host.values())
        found = {name: replace(box, x=box.x + right) for name, box in host.items()}
        rows.boxes |= found
        if is_grouped:
            rows.groups.append(frame(f"host {number}", found.values()))
        left = max(box.x + box.width / 2 for box in found.values()) + MARGIN + (GROUP + BETWEEN_HOSTS) * is_grouped
    return rows


def _ends(rows: Rows) -> list[float]:
    """Return the heights at which boxes and frames begin and end."""
    ends = [y for box in rows.boxes.values() for y in (box.y - box.height / 2, box.y + box.height / 2)]
    return ends + [y for group in rows.groups for y in (group.top, group.bottom)]


def _is_second(topology: Topology, source: str, target: str) -> bool:
    """Tell whether the other direction of a link was mentioned first."""
    order = list(topology.kinds)
    return (target, source) in topology.capacities and order.index(target) < order.index(source)


def _network(topology: Topology) -> set[str]:
    """Return the carriers that devices reach through NICs only."""

    def around(name: str) -> Sequence[str]:
        return topology.neighbours(name) if topology.kinds[name] != "nic" else ()

    reached: set[str] = reached_from(topology.devices, around)
    return set(topology.kinds) - reached


def _islands(topology: Topology, network: set[str]) -> list[_Island]:
    left = [name for name in topology.kinds if name not in network]
    islands = []
    while left:
        reached = reached_from(left[:1], lambda name: set(topology.neighbours(name)) - network)
        islands.append(_Island(topology, [name for name in left if name in reached]))
        left = [name for name in left if name not in reached]
    return islands


def _lay_out_island(island: _Island) -> dict[str, Box]:
    """Return the box of every node of an island, the devices at y = 0 or, where only links join them, around it."""
    topology = island.topology
    devices, carriers = island.of_kind("device"), island.of_kind("host", "switch")
    if not carriers:
        points = lay_out_directly(topology, devices)
        x0 = min((x for x, _ in points.values()), default=0.0)
        for name, (x, y) in points.items():
            island.boxes[name] = Box(DEVICE[0] / 2 + x - x0, y, *DEVICE, "device")
        _hang_nics(island, max(box.y for box in island.boxes.values()) + ROW)
        return island.boxes
    fabrics = [name for name in carriers if set(topology.neighbours(name)) <= set(topology.devices)]
    upper = [name for name in carriers if name not in fabrics] or fabrics
    heights = _heights(topology, upper)
    _lay_out_leaves(island, upper)
    rows: dict[int, list[str]] = defaultdict(list)
    for name in upper:
        rows[heights[name]].append(name)
    y = 0.0
    for height in sorted(rows):
        bars = _bars(topology, rows[height], island.boxes, y - ROW, up=True)
        island.boxes |= bars
        y = min(box.y for box in bars.values())
    below = max((box.y for box in _bars(topology, [], island.boxes, 0).values()), default=0.0)
    if upper is not fabrics:
        lower = _bars(topology, fabrics, island.boxes, below + ROW)
        island.boxes |= lower
        below = max((box.y for box in lower.values()), default=below)
    _hang_nics(island, below + ROW * 0.8)
    return island.boxes


def _heights(topology: Topology, upper: Sequence[str]) -> dict[str, int]:
    """Return in which row above the devices each carrier stands: hosts on top, and above them what joins only hosts."""
    hosts = [name for name in upper if topology.kinds[name] == "host"]
    joins = [name for name in upper if hosts and name not in hosts and set(topology.neighbours(name)) <= set(hosts)]
    rest = [name for name in upper if name not in joins]
    order, after = _breadth_first(topology, hosts or rest[:1], rest)
    heights: dict[str, int] = {}
    for name in reversed(order):
        heights[name] = 1 + max((heights[other] for other in after[name]), default=0)
    top = max(heights.values(), default=1)
    return heights | dict.fromkeys(hosts, top) | dict.fromkeys(joins, top + 1)


def _breadth_first(
    topology: Topology, roots: Sequence[str], names: Sequence[str]
) -> tuple[list[str], dict[str, list[str]]]:
    """Return names in order of their distance from the roots, unreached ones last, and what was reached from each."""
    order, after = list(roots), dict[str, list[str]]()
    for name in order:
        after[name] = [other for other in topology.neighbours(name) if other in names and other not in order]
        order += after[name]
    lost = [name for name in names if name not in after]
    return order + lost, after | {name: [] for name in lost}


def _lay_out_leaves(island: _Island, upper: Sequence[str]) -> None:
    """Place devices, and NICs that hang on carriers, in a row; those below one carrier together."""
    topology = island.topology
    leaves = set(island.of_kind("device")) | {
        nic for nic in island.of_kind("nic") if set(topology.neighbours(nic)) & set(upper)
    }
    first = {name: number for number, name in enumerate(topology.kinds)}
    hosts = [name for name in upper if topology.kinds[name] == "host"]
    seen: set[str] = set()
    x, last = 0.0, tuple[str, ...]()

    def visit(name: str, above: tuple[str, ...]) -> None:
        nonlocal x, last
        if name in seen:
            return
        seen.add(name)
        if name in leaves:
            kind = topology.kinds[name]
            width, height = DEVICE if kind == "device" else _NIC
            if last:
                x += BETWEEN_HOSTS * (last[:1] != above[:1]) + _BETWEEN_SWITCHES * (last != above)
            island.boxes[name] = Box(x + width / 2, 0.0, width, height, kind)
            x, last = x + STEP - DEVICE[0] + width, above
            return
        below = [other for other in topology.neighbours(name) if other in leaves or other in upper]
        for other in sorted(below, key=first.__getitem__):
            if other not in hosts:
                visit(other, (*above, name))

    for name in [*hosts, *upper, *sorted(leaves, key=first.__getitem__)]:
        visit(name, ())


def _hang_nics(island: _Island, y: float) -> None:
    """Place NICs that hang on devices below these."""
    for nic in island.of_kind("nic"):
        if nic not in island.boxes:
            above = [island.boxes[name].x for name in island.topology.neighbours(nic) if name in island.boxes]
            island.boxes[nic] = Box(sum(above) / len(above), y, *_NIC, "nic")
    nics = [name for name in island.of_kind("nic") if island.boxes[name].y == y]
    nics.sort(key=lambda name: island.boxes[name].x)
    wanted = [island.boxes[name].x for name in nics]
    centres = list(wanted)
    for number in range(1, len(nics)):
        centres[number] = max(wanted[number], centres[number - 1] + _NIC[0] + 8)
    # Pushed to the right so that none overlap, then back by as much as they were pushed in the mean.
    shift = (sum(centres) - sum(wanted)) / max(len(centres), 1)
    for name, x in zip(nics, centres, strict=True):
        island.boxes[name] = Box(x - shift, y, *_NIC, "nic")


def _bars(
    topology: Topology, names: Iterable[str], boxes: dict[str, Box], y: float, *, up: bool = False
) -> dict[str, Box]:
    """Return carriers as bars over or under what they join; those that would overlap take further rows."""
    bars: dict[str, Box] = {}
    ends: list[float] = []
    spans = []
    for name in names:
        joined = [boxes[other] for other in topology.neighbours(name) if other in boxes]
        lows, highs = [b.x - b.width / 2 for b in joined], [b.x + b.width / 2 for b in joined]
        low, high = (min(lows), max(highs)) if joined else (MARGIN, MARGIN + DEVICE[0])
        wanted = max(high - low, min(24 + 7.2 * len(label(name)), STEP - 8))
        spans.append(((low + high) / 2 - wanted / 2, wanted, name))
    for low, width, name in sorted(spans, key=lambda span: span[:2]) if up else spans:
        row = next((number for number, end in enumerate(ends) if end + 8 <= low), len(ends))
        ends[row:] = [low + width, *ends[row + 1 :]]
        at = y - row * LANE if up else y + row * LANE
        bars[name] = Box(low + width / 2, at, width, BAR, topology.kinds[name])
    return bars


def _wire(wires: Mapping[tuple[str, str], Sequence[tuple[float, float]]], a: str, b: str) -> str:
    """Return the line that has corners of its own, in the direction from one end to the other, or nothing."""
    corners = wires.get((a, b)) or wires.get((b, a), ())[::-1]
    return "L".join(f"{x:.1f} {y:.1f}" for x, y in corners).join(("M" * bool(corners), ""))


def _line(boxes: dict[str, Box], a: str, b: str) -> str:
    """Return the line between two boxes, from edge to edge."""
    one, other = boxes[a], boxes[b]
    arc = _arc(boxes, a, b)
    if arc:
        depth = arc * (1 if one.kind == "device" else -1)
        y = one.y + (one.height / 2 if depth > 0 else -one.height / 2)
        return f"M{one.x:.1f} {y:.1f}C{one.x:.1f} {y + depth:.1f} {other.x:.1f} {y + depth:.1f} {other.x:.1f} {y:.1f}"
    start, end = _facing(one, other), _facing(other, one)
    return f"M{start[0]:.1f} {start[1]:.1f}L{end[0]:.1f} {end[1]:.1f}"


def _arc(boxes: dict[str, Box], a: str, b: str) -> float:
    """Return how deep a line bends, which joins boxes of one row with others between them; 0 for a straight one."""
    one, other = boxes[a], boxes[b]
    if abs(one.y - other.y) > 1 or one.kind != other.kind:
        return 0.0
    low, high = sorted((one.x, other.x))
    between = [box for box in boxes.values() if abs(box.y - one.y) < box.height / 2 + 1 and low < box.x < high]
    return 30.0 + 0.16 * (high - low) if between else 0.0


def _reach(boxes: dict[str, Box], a: str, b: str) -> list[float]:
    """Return the height to which an arc bends down below devices or up above hosts; nothing for a straight line."""
    box, arc = boxes[a], _arc(boxes, a, b)
    bend = box.height / 2 + 0.75 * arc
    return [box.y + bend if box.kind == "device" else box.y - bend] if arc else []


def _facing(box: Box, other: Box) -> tuple[float, float]:
    """Return the point of a box's edge from which a line to another box starts; bars let lines run straight down."""
    if abs(other.y - box.y) > (box.height + other.height) / 2:
        low, high = (
            max(box.x - box.width / 2, other.x - other.width / 2),
            min(box.x + box.width / 2, other.x + other.width / 2),
        )
        if box.kind != "device" or other.kind != "device":
            x = (low + high) / 2 if low <= high else min(max(other.x, box.x - box.width / 2), box.x + box.width / 2)
            return x, box.y + (box.height / 2 if other.y > box.y else -box.height / 2)
    dx, dy = other.x - box.x, other.y - box.y
    scale = min(box.width / 2 / abs(dx) if dx else 9e9, box.height / 2 / abs(dy) if dy else 9e9)
    return box.x + dx * min(scale, 0.5), box.y + dy * min(scale, 0.5)
