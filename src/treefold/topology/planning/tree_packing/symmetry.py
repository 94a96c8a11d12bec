"""The symmetry of large regular machines: shifts of hosts, and of positions in hosts, that map a machine onto itself.

Every shift is checked link by link. The mean of a solution's images under all shifts is a solution of the same value,
because the program is convex; the same holds for prices. Links that shifts map onto each other can therefore share one
price, and a tree together with all its images loads them equally. The program shrinks to a few rows without loss.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from treefold.keyed import grouped
from treefold.topology.graph import Topology, reached_from
from treefold.topology.planning.tree_packing.network import Indices, Network

Names = dict[str, str]  # node → node


@dataclass(frozen=True)
class Shift:
    """A map of a machine onto itself; applied ``order`` times, it is the identity."""

    names: Names
    order: int


def find_shifts(topology: Topology) -> tuple[Shift, ...]:
    """Return shifts that map the machine onto itself and commute, or () if none are found.

    The search looks for blocks of devices, equally many around each carrier of a kind (the switch of a host, a rail),
    and tries shifts from block to block and within blocks.
    """
    colours = _refined(topology, dict.fromkeys(topology.devices, 0))
    for first, second in _block_systems(topology, colours):
        grid = _grid(first, second)
        rows, columns = len(grid), len(grid[0])
        moves = [
            {grid[r][c]: grid[(r + 1) % rows][c] for r in range(rows) for c in range(columns)},
            {grid[r][c]: grid[r][(c + 1) % columns] for r in range(rows) for c in range(columns)},
        ]
        found = [
            Shift(names, order)
            for devices, order in zip(moves, (rows, columns), strict=True)
            if (names := _extended(topology, devices)) is not None
        ]
        # Commuting shifts make every image a·b in one order only, so that ``all_images`` and ``row_groups`` take one
        # shift after the other and miss nothing.
        pairs = [(a.names, b.names) for a, b in itertools.combinations(found, 2)]
        if found and all(a[b[name]] == b[a[name]] for a, b in pairs for name in a):
            return tuple(found)
    return ()


def row_map(network: Network, names: Names) -> Indices:
    """Return for every row the row onto which it is shifted."""
    rows = np.arange(len(network.capacities))
    for (source, target), row in network.row_of.items():
        rows[row] = network.row_of[names[source], names[target]]
    return rows


def row_groups(network: Network, shifts: Sequence[Shift]) -> Indices:
    """Return the number of each row's group: rows that shifts map onto each other."""
    # Least number of each orbit. After the first shift it is that of the shift's own cycles; the second one takes the
    # least over its cycles of that, which is the orbit under both, because they commute.
    group = np.arange(len(network.capacities))
    for shift in shifts:
        rows = row_map(network, shift.names)
        while True:  # every shift is a bijection, so the smallest number reaches its whole cycle
            smaller = np.minimum(group, group[rows])
            if (smaller == group).all():
                break
            group = smaller
    return np.unique(group, return_inverse=True)[1]


def all_images(topology: Topology, shifts: Sequence[Shift]) -> list[Names]:
    """Return every combination of the shifts, each as a map of names; the first changes nothing."""
    images = [{node.name: node.name for node in topology.nodes}]
    for shift in shifts:
        before = images
        # ``order`` applications are the identity, so one less gives every image once.
        for _ in range(1, shift.order):
            before = [{name: shift.names[now] for name, now in names.items()} for names in before]
            images = images + before
    return images


def _block_systems(topology: Topology, colours: Mapping[str, int]) -> Iterator[tuple[list[list[str]], list[list[str]]]]:
    """Yield pairs of divisions of the devices into equal blocks, the second across the first; coarse ones first."""
    carriers = [node.name for node in topology.nodes if node.kind != "device"]
    kinds = grouped((colours[name], _devices_around(topology, name)) for name in carriers)
    count = len(topology.devices)
    systems = [
        blocks
        for blocks in kinds.values()
        if 1 < len(blocks) < count
        and len({len(block) for block in blocks}) == 1
        and sorted(itertools.chain(*blocks)) == sorted(topology.devices)
    ]
    for first, second in itertools.permutations(systems, 2):
        # A grid: each block of the one system shares exactly one device with each block of the other.
        sets = [set(block) for block in second]
        if len(first) * len(second) == count and all(len(a.intersection(b)) == 1 for a in sets for b in first):
            yield first, second
    for first in systems:
        # Without a second kind of carrier, positions within blocks, as the topology numbers them, are a guess for the
        # columns.
        yield first, [list(block) for block in zip(*first, strict=True)]


def _devices_around(topology: Topology, carrier: str) -> list[str]:
    """Return the devices at a carrier, directly or behind carriers that join just two nodes."""

    def onward(name: str) -> tuple[str, ...]:
        around = topology.neighbours(name)
        is_passed = topology.kinds[name] != "device" and len(around) == 2  # noqa: PLR2004 - as above
        return around if is_passed or name == carrier else ()

    reached = reached_from([carrier], onward)
    return [device for device in topology.devices if device in reached]


def _grid(first: Sequence[Sequence[str]], second: Sequence[Sequence[str]]) -> list[list[str]]:
    """Return the device of each block of the first system and block of the second."""
    return [[next(device for device in across if device in set(block)) for across in second] for block in first]


def _refined(topology: Topology, start: Mapping[str, int], palette: dict[object, int] | None = None) -> dict[str, int]:
    """Return a colour per node, by colour refinement: nodes of one colour have equal links to equal colours.

    ``palette`` maps each pattern of neighbours to its colour. Two runs that share a palette give comparable colours.
    """
    # The Weisfeiler-Leman test in one dimension. Nodes of one colour need not be equivalent; nodes of two colours never
    # are, which keeps the search for candidates short.
    palette = {} if palette is None else palette
    colours: dict[str, int] = {}
    for node in topology.nodes:
        colours[node.name] = palette.setdefault((node.kind, start.get(node.name, -1)), len(palette))
    number = len(set(colours.values()))
    while True:
        seen = {
            name: (
                colour,
                tuple(
                    sorted(
                        (colours[near], topology.capacity(name, near), topology.capacity(near, name))
                        for near in topology.neighbours(name)
                    )
                ),
            )
            for name, colour in colours.items()
        }
        colours = {name: palette.setdefault(sight, len(palette)) for name, sight in seen.items()}
        # Colours only split. A round that splits none leaves nothing for the next one to tell apart.
        if len(set(colours.values())) == number:
            return colours
        number = len(set(colours.values()))


def _extended(topology: Topology, devices: Names) -> Names | None:
    """Extend a map of the devices to all nodes, so that every link is kept; return None if there is no such map."""
    palette: dict[object, int] = {}
    numbers = {device: number for number, device in enumerate(topology.devices)}
    # Each device has a colour of its own, that of its image on the other side: only the carriers are left to be
    # matched.
    before = _refined(topology, {device: numbers[image] for device, image in devices.items()}, palette)
    after = _refined(topology, numbers, palette)
    unused = grouped((colour, name) for name, colour in after.items())
    names: Names = {}
    for name, colour in before.items():
        if not unused.get(colour):
            return None
        # Any node of the colour: all links are checked below, so that a wrong choice gives None, and no wrong map.
        names[name] = unused[colour].pop(0)
    moved = {(names[source], names[target]): width for (source, target), width in topology.capacities.items()}
    # Capacities are compared as well: a map onto links of another width would give them one price.
    return names if moved == dict(topology.capacities) else None
