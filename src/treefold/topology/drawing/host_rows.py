"""Hosts in rows, where one row is wider than a screen, and the network below them as a wiring diagram.

A carrier of the network has a horizontal lane under each row of hosts and a vertical trunk beside them. A NIC's line
goes down to the lane, along it to the trunk, and down the trunk to the carrier's box; no line passes behind a host.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from treefold.topology.drawing.boxes import BAR, LANE, MARGIN, ROW, STEP, Box, Group, frame
from treefold.topology.graph import Topology

#: A drawing of this width is shown at ``svg.NARROWEST`` of its size on a page of 1280 pixels, which leave it 1048.
WIDEST = 1276.0
_WIRE, _GAP = 5.0, 14.0  # between parallel wires, and around bundles of them

Point = tuple[float, float]
Pair = tuple[str, str]


@dataclass
class Rows:
    """Boxes by name, a frame per host, and the corners of the line of each (NIC, carrier)."""

    boxes: dict[str, Box] = field(default_factory=dict)
    groups: list[Group] = field(default_factory=list)
    wires: dict[Pair, tuple[Point, ...]] = field(default_factory=dict)


def in_rows(topology: Topology, hosts: Sequence[Mapping[str, Box]], carriers: Sequence[str]) -> Rows:
    """Return the hosts in as few rows as fit, of equal length, and below them the carriers that NICs are joined to."""
    frames = [frame(f"host {number}", host.values()) for number, host in enumerate(hosts)]
    pitch = max(group.right - group.left for group in frames) + _GAP
    nics = {name: [nic for nic in topology.neighbours(name) if any(nic in host for host in hosts)] for name in carriers}
    wired = [name for name in carriers if nics[name]]
    bundle = _WIRE * len(wired) + _GAP
    most = max(1, int((WIDEST - 2 * MARGIN - bundle + _GAP) / pitch))
    columns = math.ceil(len(hosts) / math.ceil(len(hosts) / most))
    middle = math.ceil(columns / 2)
    first_trunk = MARGIN + middle * pitch + _WIRE / 2
    trunks = {name: first_trunk + _WIRE * number for number, name in enumerate(wired)}
    rows, lanes, y = Rows(), dict[Pair, float](), 0.0
    for start in range(0, len(hosts), columns):
        bottom = y
        for column, number in enumerate(range(start, min(start + columns, len(hosts)))):
            x = MARGIN + column * pitch + (bundle if column >= middle else 0.0)
            right, down = x - frames[number].left, y - frames[number].top
            host = {name: _moved(box, right, down) for name, box in hosts[number].items()}
            rows.boxes |= host
            rows.groups.append(frame(frames[number].label, host.values()))
            bottom = max(bottom, rows.groups[-1].bottom)
        reached = {nic for nic in rows.boxes if topology.kinds[nic] == "nic"} - {nic for nic, _ in lanes}
        for number, name in enumerate(wired):
            lanes |= {(nic, name): bottom + _GAP + _WIRE * number for nic in nics[name] if nic in reached}
        y = bottom + bundle + _GAP
    width = max(group.right for group in rows.groups) + MARGIN
    rows.boxes |= _in_a_row(topology, wired, y + ROW, max(width, trunks[wired[-1]] + MARGIN) if wired else width)
    for (nic, name), lane in lanes.items():
        rows.wires[nic, name] = _wire(rows.boxes[nic], lane, trunks[name], y, rows.boxes[name])
    return rows


def _moved(box: Box, right: float, down: float) -> Box:
    return Box(box.x + right, box.y + down, box.width, box.height, box.kind)


def _in_a_row(topology: Topology, names: Sequence[str], y: float, width: float) -> dict[str, Box]:
    """Return boxes side by side in the middle of the paper; those that do not fit take further rows."""
    most = max(1, int((width - 2 * MARGIN) / STEP))
    left = (width - STEP * (min(len(names), most) - 1)) / 2
    return {
        name: Box(left + STEP * (number % most), y + LANE * (number // most), STEP - 8, BAR, topology.kinds[name])
        for number, name in enumerate(names)
    }


def _wire(nic: Box, lane: float, trunk: float, bottom: float, carrier: Box) -> tuple[Point, ...]:
    return (
        (nic.x, nic.y + nic.height / 2),
        (nic.x, lane),
        (trunk, lane),
        (trunk, bottom),
        (carrier.x, carrier.y - carrier.height / 2),
    )
