"""Max-min fair sharing: nobody's rate can grow without taking from somebody who has no more.

Bertsekas and Gallager, *Data Networks*, section 6.5.2: raise all rates together, and where a resource is full, fix the
rates of all who use it. Rates are chunks per second, not bytes: a link serves chunks in turn, so one that is twice as
large gets twice the bandwidth. Where all chunks are of one size there is no difference; where packs are not, they keep
pace with each other, which the optimal packings rely on.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

_SAME = 1 + 1e-9  # shares that differ by less are equal: what differs is the order in which they were added up


def max_min_rates(
    lanes: Collection[int],
    resources: Sequence[Sequence[int]],
    nbytes: Sequence[float],
    capacities: Mapping[int, float] | Sequence[float],
) -> dict[int, float]:
    """Return how many chunks per second each of these lanes gets.

    ``resources[l]``: what lane l uses, ``nbytes[l]``: with how many bytes per chunk. ``capacities[r]``: bytes per
    second.

    >>> max_min_rates([0, 1, 2], [(0,), (0, 1), (1,)], [1.0, 1.0, 1.0], [10.0, 30.0])
    {0: 5.0, 1: 5.0, 2: 25.0}
    """
    users: dict[int, list[int]] = {}
    for lane in lanes:
        for resource in resources[lane]:
            users.setdefault(resource, []).append(lane)
    left = {resource: capacities[resource] for resource in users}
    weight = {resource: sum([nbytes[lane] for lane in found]) for resource, found in users.items()}
    rates: dict[int, float] = {}
    rising, level = len(lanes), 0.0
    while rising:
        share = {resource: left[resource] / weight[resource] for resource in users}
        level = max(level, min(share.values()))  # rounding must not let it fall
        for resource in [resource for resource, part in share.items() if part <= level * _SAME]:
            for lane in users.pop(resource):
                if lane not in rates:
                    rates[lane] = level
                    rising -= 1
                    for other in resources[lane]:
                        left[other] -= level * nbytes[lane]
                        weight[other] -= nbytes[lane]
        users = {resource: found for resource, found in users.items() if any(lane not in rates for lane in found)}
    return rates


class Sharing:
    """The rates of active lanes, kept up to date: what changes on a resource concerns only lanes that it is tied to.

    ``resources[l]`` and ``nbytes[l]`` as in ``max_min_rates``.
    """

    def __init__(
        self, resources: Sequence[Sequence[int]], nbytes: Sequence[float], capacities: Sequence[float]
    ) -> None:
        """Start with no lane active."""
        self._resources, self._nbytes, self._capacities = resources, nbytes, capacities
        self._active: list[set[int]] = [set() for _ in capacities]
        self._changed: set[int] = set()
        self._known: dict[frozenset[int], dict[int, float]] = {}

    def add(self, lane: int) -> None:
        """Make a lane active."""
        for resource in self._resources[lane]:
            self._active[resource].add(lane)
            self._changed.add(resource)

    def remove(self, lane: int) -> None:
        """Make a lane idle."""
        for resource in self._resources[lane]:
            self._active[resource].discard(lane)
            self._changed.add(resource)

    def changes(self) -> dict[int, float]:
        """Return the rates of all lanes whose rate may have changed since the last call."""
        found: dict[int, float] = {}
        seen: set[int] = set()
        for resource in self._changed:
            if resource not in seen:
                found.update(self._rates(self._part(resource, seen)))
        self._changed = set()
        return found

    def _part(self, start: int, seen: set[int]) -> set[int]:
        """Return the active lanes that hang together with a resource, and note all resources that do."""
        part: set[int] = set()
        seen.add(start)
        todo = [start]
        while todo:
            fresh = self._active[todo.pop()] - part
            part |= fresh
            for lane in fresh:
                for resource in self._resources[lane]:
                    if resource not in seen:
                        seen.add(resource)
                        todo.append(resource)
        return part

    def _rates(self, part: set[int]) -> dict[int, float]:
        """Return the rates of lanes that share with each other alone; a pipeline comes back to few sets of them."""
        key = frozenset(part)
        rates = self._known.get(key)
        if rates is None:
            rates = self._known[key] = max_min_rates(part, self._resources, self._nbytes, self._capacities)
        return rates
