"""What each host should own in a direct plan: the shares that let the busiest port end first; exact.

Host h sends its c contributions to all slices that others own, and the results of its own slice x to the other H − 1
hosts: c·(1 − x) + x·(H − 1) = c + x·(H − 1 − c) of the values leave it. The C − c contributions of others to its slice
and the results of all other slices come in: x·(C − c) + (1 − x) = 1 + x·(C − c − 1). Both are divided by the rate of
its port, and the largest time of all is minimised over the shares, whose sum is 1.

For a given time, each port bears an interval of shares, so the times that are long enough are found by adding up the
ends of the intervals. No general solver is needed, and fractions keep the result the same on all ranks.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from treefold.topology.graph import Topology

Ends = tuple[str, str]


def host_shares(
    topology: Topology, hosts: Sequence[Sequence[str]], contributions: Sequence[Fraction | float]
) -> tuple[Fraction, ...]:
    """Return the share of the values that each host should own; of several that are best, that nearest to port speeds.

    ``hosts``: the devices of each. ``contributions``: how often each host sends a slice, in units of a result: its
    number of replicas, or 1 if it folds them first. Of links, only each host's own are counted: the narrowest cut
    between its devices and all others. What several hosts share, such as the trunk of a rack, is not.

    Raises:
        TopologyError: a device that is not there.

    >>> from treefold.topology import TopologyBuilder
    >>> builder = TopologyBuilder().switch("switch")
    >>> for number, rate in enumerate([20, 20, 20, 5]):
    ...     builder = builder.device(f"cpu:{number}").link(f"cpu:{number}", "switch", gb_per_s=rate)
    >>> cluster = builder.build()
    >>> [str(share) for share in host_shares(cluster, [[device] for device in cluster.devices], [1] * 4)]
    ['1/3', '1/3', '1/3', '0']
    """
    rates = [port_rates(topology, devices) for devices in hosts]
    return shares_of_ports(rates, contributions)


def shares_of_ports(
    rates: Sequence[tuple[Fraction, Fraction]], contributions: Sequence[Fraction | float]
) -> tuple[Fraction, ...]:
    """Return the shares of hosts whose ports carry so many bytes per second out and in."""
    if len(rates) == 1:
        return (Fraction(1),)
    ports = _ports(rates, [Fraction(number) for number in contributions])
    seconds = _least_seconds(ports)
    return _level(ports, seconds)


class _Line(NamedTuple):
    """A time that grows with the share x: (constant + slope·x) / rate."""

    constant: Fraction
    slope: Fraction
    rate: Fraction

    def seconds(self, share: Fraction) -> Fraction:
        return (self.constant + self.slope * share) / self.rate

    def share(self, seconds: Fraction) -> Fraction:
        """Return the share at which it takes so long; the slope is not 0."""
        return (self.rate * seconds - self.constant) / self.slope


@dataclass(frozen=True, slots=True)
class _Port:
    """The port of a host: one line for what goes out, one for what comes in."""

    lines: tuple[_Line, _Line]

    @property
    def rate(self) -> Fraction:
        return min(line.rate for line in self.lines)

    def seconds(self, share: Fraction) -> Fraction:
        return max(line.seconds(share) for line in self.lines)

    def most(self, seconds: Fraction) -> Fraction:
        """Return the largest share that the port bears in so many seconds; there is one."""
        return min([line.share(seconds) for line in self.lines if line.slope > 0] + [Fraction(1)])

    def least(self, seconds: Fraction) -> Fraction:
        """Return the smallest such share: whoever brings many contributions sends less by owning more."""
        return max([line.share(seconds) for line in self.lines if line.slope < 0] + [Fraction(0)])

    @property
    def corners(self) -> list[Fraction]:
        """The shares at which the port's time, or what it bears, may change its slope."""
        one, two = self.lines
        # Both lines take equally long where (a + b·x) / r = (c + d·x) / s.
        # Crossings outside of 0 to 1 are moved to an end: a corner too many does no harm, and one too few would.
        steepness = one.slope * two.rate - two.slope * one.rate
        crossing = (two.constant * one.rate - one.constant * two.rate) / steepness if steepness else Fraction(0)
        return [Fraction(0), Fraction(1), min(max(crossing, Fraction(0)), Fraction(1))]


def _ports(rates: Sequence[tuple[Fraction, Fraction]], contributions: Sequence[Fraction]) -> list[_Port]:
    others, total = len(rates) - 1, sum(contributions)
    return [
        _Port((_Line(own, others - own, out), _Line(Fraction(1), total - own - 1, into)))
        for (out, into), own in zip(rates, contributions, strict=True)
    ]


def _least_seconds(ports: Sequence[_Port]) -> Fraction:
    """Return the least time in which all ports can carry shares whose sum is 1.

    What a port bears at most and at least is linear in time between the times of its corners. So is the sum, between
    two neighbours of which the first is too short; there the time is solved for.
    """
    # A port's time is the greater of two lines, hence convex in the share, and least at one of its corners.
    floor = max(min(port.seconds(share) for share in port.corners) for port in ports)  # before, some port bears nothing
    if _bear(ports, floor):
        return floor
    # Every time at which an end of some interval begins to move, or stops: a line reaches a corner's share then.
    corners = {line.seconds(share) for port in ports for share in port.corners for line in port.lines}
    times = sorted(time for time in corners | {floor} if time >= floor)
    # There is such a pair: at the last of these times every port bears any share from 0 to 1.
    before, after = next(pair for pair in itertools.pairwise(times) if _bear(ports, pair[1]))
    reached = [before]
    for total, is_short in ((_most, Fraction.__lt__), (_least, Fraction.__gt__)):
        early, late = total(ports, before), total(ports, after)
        if is_short(early, Fraction(1)):
            # Between neighbouring times the sum is a straight line, so the time at which it is 1 follows from its two
            # ends.
            reached.append(before + (after - before) * (1 - early) / (late - early))
    return max(reached)


def _bear(ports: Sequence[_Port], seconds: Fraction) -> bool:
    """Tell whether the ports bear shares whose sum is 1."""
    # Intervals add up to an interval, so any sum between its ends can be had.
    return _least(ports, seconds) <= 1 <= _most(ports, seconds)


def _most(ports: Sequence[_Port], seconds: Fraction) -> Fraction:
    return sum((port.most(seconds) for port in ports), Fraction(0))


def _least(ports: Sequence[_Port], seconds: Fraction) -> Fraction:
    return sum((port.least(seconds) for port in ports), Fraction(0))


def _level(ports: Sequence[_Port], seconds: Fraction) -> tuple[Fraction, ...]:
    """Return shares in proportion to the ports' rates, as far as each port bears them, whose sum is 1."""
    bounds = [(port.least(seconds), port.most(seconds), port.rate) for port in ports]

    def shares(level: Fraction) -> list[Fraction]:
        # Water filling: each share rises with the level from its lower bound to its upper one, and so does their sum.
        return [min(max(level * rate, least), most) for least, most, rate in bounds]

    # The levels at which some share begins or stops to rise; between two of them the sum is a straight line.
    levels = sorted({bound / rate for least, most, rate in bounds for bound in (least, most)})
    if sum(shares(levels[0])) == 1:
        return tuple(shares(levels[0]))
    low, high = next(pair for pair in itertools.pairwise(levels) if sum(shares(pair[1])) >= 1)
    below, above = sum(shares(low)), sum(shares(high))
    return tuple(shares(low + (high - low) * (1 - below) / (above - below)))


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
