"""The shares of the values that hosts own in a direct plan, exactly: those that minimise the busiest port's time.

Host h owns the share x and sends c contributions to all slices of other hosts. The results of its own slice go to the
other H − 1 hosts. So c·(1 − x) + x·(H − 1) = c + x·(H − 1 − c) of the values leave it. The C − c contributions of
others to its slice arrive, and the results of all other slices. Together they are x·(C − c) + (1 − x) = 1 + x·(C − c −
1) of the values. Both are divided by the rate of the host's port. The largest of these times is minimised over the
shares, which add up to 1.

At a given time, each port allows an interval of shares. A time is long enough if the sums of the intervals' ends
enclose 1. This needs no general solver, and fractions give the same result on all ranks.
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
    """Return the share of the values that each host should own; of several best ones, the nearest to port speeds.

    Only each host's own links count: the narrowest cut between its devices and all others. Links that several hosts
    share, such as the trunk of a rack, do not count.

    Args:
        topology: the machine.
        hosts: the devices of each host.
        contributions: how often each host sends a slice, in units of a result: its number of replicas, or 1 if it folds
            them first.

    Returns:
        A fraction for each host; they add up to 1.

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
    """Return the shares of hosts by the ``rates`` of their ports: (out, into) in bytes per second."""
    if len(rates) == 1:
        return (Fraction(1),)
    ports = _ports(rates, [Fraction(number) for number in contributions])
    seconds = _least_seconds(ports)
    return _level(ports, seconds)


class _Line(NamedTuple):
    """A time that is linear in the share x: (constant + slope·x) / rate."""

    constant: Fraction
    slope: Fraction
    rate: Fraction

    def seconds(self, share: Fraction) -> Fraction:
        return (self.constant + self.slope * share) / self.rate

    def share(self, seconds: Fraction) -> Fraction:
        """Return the share at which the line has this time; the slope is not 0."""
        return (self.rate * seconds - self.constant) / self.slope


@dataclass(frozen=True, slots=True)
class _Port:
    """The port of a host: one line for bytes out, and one for bytes in."""

    lines: tuple[_Line, _Line]

    @property
    def rate(self) -> Fraction:
        return min(line.rate for line in self.lines)

    def seconds(self, share: Fraction) -> Fraction:
        return max(line.seconds(share) for line in self.lines)

    def most(self, seconds: Fraction) -> Fraction:
        """Return the largest share that the port can own within ``seconds``, which are enough for some share."""
        return min([line.share(seconds) for line in self.lines if line.slope > 0] + [Fraction(1)])

    def least(self, seconds: Fraction) -> Fraction:
        """Return the smallest such share: a host with many contributions sends less if it owns more."""
        return max([line.share(seconds) for line in self.lines if line.slope < 0] + [Fraction(0)])

    @property
    def corners(self) -> list[Fraction]:
        """The shares at which the port's time, or the share that it can own, may change its slope."""
        one, two = self.lines
        # Both lines take equally long where (a + b·x) / r = (c + d·x) / s.
        # Crossings outside of 0 to 1 are moved to an end: an extra corner does no harm, and a missing one would.
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
    """Return the least time in which all ports can own shares that add up to 1.

    The largest and the smallest share of a port are linear in time between the times of its corners. Their sums over
    all ports are linear there, too. The time is solved for between two neighbouring corners, of which the first is too
    short.
    """
    # A port's time is the greater of two lines, hence convex in the share, and least at one of its corners.
    floor = max(min(port.seconds(share) for share in port.corners) for port in ports)  # Below, some port allows none.
    if _bear(ports, floor):
        return floor
    # Every time at which an end of some interval begins to move, or stops: a line reaches a corner's share then.
    corners = {line.seconds(share) for port in ports for share in port.corners for line in port.lines}
    times = sorted(time for time in corners | {floor} if time >= floor)
    # There is such a pair: at the last of these times every port can own any share from 0 to 1.
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
    """Tell whether the ports can own shares that add up to 1 within this time."""
    # Intervals add up to an interval, so any sum between its ends can be had.
    return _least(ports, seconds) <= 1 <= _most(ports, seconds)


def _most(ports: Sequence[_Port], seconds: Fraction) -> Fraction:
    return sum((port.most(seconds) for port in ports), Fraction(0))


def _least(ports: Sequence[_Port], seconds: Fraction) -> Fraction:
    return sum((port.least(seconds) for port in ports), Fraction(0))


def _level(ports: Sequence[_Port], seconds: Fraction) -> tuple[Fraction, ...]:
    """Return shares that add up to 1, in proportion to the ports' rates within the bounds of each port."""
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
    """Return the bytes per second from these devices to all others, and back, as exact fractions.

    >>> from treefold.topology import known_topology
    >>> [int(rate) for rate in port_rates(known_topology("2x8_h100"), [f"gpu:{number}" for number in range(8)])]
    [400000000000, 400000000000]
    """
    inside, outside = set(devices), set(topology.devices) - set(devices)
    there = topology.capacities
    # The rate into the devices is the rate out of them with all links reversed.
    back = {(target, source): width for (source, target), width in there.items()}
    return _largest_flow(there, inside, outside), _largest_flow(back, inside, outside)


def _largest_flow(capacities: Mapping[Ends, Fraction], sources: Collection[str], sinks: Collection[str]) -> Fraction:
    """Return the largest flow, found along shortest augmenting paths (Edmonds and Karp 1972).

    The flow equals the narrowest cut (Ford and Fulkerson 1956). Shortest paths bound the number of augmentations by
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
    """Return the links of a shortest path with room on every link, or no links if there is no such path."""
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
