"""How fast values leave and reach a group of devices: the narrowest cut between them and all other devices."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from fractions import Fraction

from treefold.topology.graph import Topology

Ends = tuple[str, str]


def port_rates(topology: Topology, devices: Collection[str]) -> tuple[Fraction, Fraction]:
    """Return the bytes per second that can leave these devices for all others, and that can come from them; exact.

    >>> from treefold.topology import known_topology
    >>> [int(rate) for rate in port_rates(known_topology("2x8_h100"), [f"gpu:{number}" for number in range(8)])]
    [400000000000, 400000000000]
    """
    inside, outside = set(devices), set(topology.devices) - set(devices)
    there = topology.capacities
    # What can come in is what can go out with all links turned round.
    back = {(target, source): width for (source, target), width in there.items()}
    return _largest_flow(there, inside, outside), _largest_flow(back, inside, outside)


def _largest_flow(capacities: Mapping[Ends, Fraction], sources: Collection[str], sinks: Collection[str]) -> Fraction:
    """Return the largest flow, along shortest augmenting paths (Edmonds and Karp 1972).

    It equals the narrowest cut (Ford and Fulkerson 1956). Shortest paths bound the number of augmentations by
    nodes·links, whatever the capacities are.
    """
    room = dict(capacities)
    neighbours: dict[str, set[str]] = {}
    for source, target in capacities:
        neighbours.setdefault(source, set()).add(target)
        neighbours.setdefault(target, set()).add(source)
        # Room against the direction of a link lets a later path undo a part of an earlier one (the residual network).
        room.setdefault((target, source), Fraction(0))
    flow = Fraction(0)
    while path := _path(room, neighbours, sources, sinks):
        # Exact: with floats, a link that is full but for rounding would be augmented by nothing, again and again.
        width = min(room[ends] for ends in path)
        for source, target in path:
            room[source, target] -= width
            room[target, source] += width
        flow += width
    return flow


def _path(
    room: Mapping[Ends, Fraction],
    neighbours: Mapping[str, Collection[str]],
    sources: Collection[str],
    sinks: Collection[str],
) -> list[Ends]:
    """Return the links of a shortest path that has room; none if there is no path."""
    before: dict[str, str] = {}
    # All sources at distance 0, and the first sink ends the search: as if one node fed them all, and one drained them.
    layer, seen = [*sources], set(sources)
    for name in layer:
        for other in neighbours.get(name, ()):
            if other not in seen and room[name, other]:
                seen.add(other)
                before[other] = name
                layer.append(other)
                if other in sinks:
                    path = [(name, other)]
                    while path[-1][0] not in sources:
                        path.append((before[path[-1][0]], path[-1][0]))
                    return path
    return []
