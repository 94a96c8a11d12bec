"""Bounds on the number of rings of one width that fit into the links of a machine: where the search may stop."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from fractions import Fraction

import numpy as np

from treefold.errors import MissingExtraError
from treefold.topology.graph import Topology
from treefold.topology.planning.tree_packing.columns import load_scipy_optimize
from treefold.topology.planning.tree_packing.network import Array

Ends = tuple[str, str]
Route = tuple[str, ...]
Slots = Mapping[Ends, int]  # for how many rings of one width a directed link has room

_MOST_RINGS = 32  # as many channels as NCCL opens
_MOST_HOPS = 1000  # between 32 devices; a larger linear program takes longer than the search that it ends
# Above the solver's tolerance of 1e-7: a constraint that is in the program already must not count as violated again, or
# ``most_fractional_rings`` would not end.
_NEARLY_NONE = 1e-6


def most_rings(topology: Topology, slots: Slots) -> int:
    """Return a number of rings that no packing exceeds.

    Every ring leaves each group of devices at least once and comes back to it, so the slots on the links out of a group
    bound the number of rings, and so do those into it. The groups are single devices, and devices that links wider than
    some width join.
    """
    # Any group gives a valid bound, so a few will do: those that only narrow links connect to the rest are where cuts
    # are narrow. A bound that is too high costs time, and proves nothing wrong.
    groups = {frozenset([device]) for device in topology.devices} | _joined(topology)
    found = _MOST_RINGS
    for group in groups:
        # Carriers belong to a group as well, because links between them are cut, too; without devices on both sides, no
        # ring has to cross.
        if 0 < sum(device in group for device in topology.devices) < len(topology.devices):
            out = sum(count for (source, target), count in slots.items() if source in group and target not in group)
            into = sum(count for (source, target), count in slots.items() if source not in group and target in group)
            found = min(found, out, into)
    return found


def _joined(topology: Topology) -> set[frozenset[str]]:
    """Return the groups of nodes that links of some width and wider join (single linkage)."""
    by_width: dict[Fraction, list[Ends]] = {}
    for ends, capacity in topology.capacities.items():
        # By the narrower direction: a ring that leaves a group must also come back.
        by_width.setdefault(min(capacity, topology.capacity(*ends[::-1])), []).append(ends)
    by_width.pop(Fraction(0), None)  # one way only
    group_of = {name: {name} for name in topology.kinds}
    found = set[frozenset[str]]()
    for width in sorted(by_width, reverse=True):
        grown = list[str]()
        for source, target in by_width[width]:
            group, other = group_of[source], group_of[target]
            if group is not other:
                group |= other
                group_of |= dict.fromkeys(other, group)
                grown.append(source)
        # Once all links of this width are in: the cut around a part of a group holds links as wide as those inside.
        found |= {frozenset(group_of[name]) for name in grown}
    return found


def most_fractional_rings(topology: Topology, hops: Mapping[Ends, Route], slots: Slots) -> int:
    """Return a number of rings that no packing exceeds, from a linear program; on most machines, the number that fits.

    The program lets rings be fractions. It maximises their number R, whose hops together leave and enter every device R
    times and load no link beyond its slots. A ring does not close within a group of devices, so at most (size − 1)·R of
    the hops lie inside a group; a pair of devices thus has a hop in one direction per ring. All pairs have this
    constraint from the start. Larger groups get it when a solution violates it, if single linkage finds them. Whatever
    groups are missed, the bound holds.

    Source: the subtours of Dantzig, Fulkerson and Johnson (1954).
    """
    try:
        optimize = load_scipy_optimize()
    except MissingExtraError:
        return _MOST_RINGS  # the search then finds as many rings, but does not learn that there are no more
    if len(hops) > _MOST_HOPS:
        return _MOST_RINGS
    number = {device: position for position, device in enumerate(topology.devices)}
    ends = np.array([(number[source], number[target]) for source, target in hops])
    used = sorted({link for route in hops.values() for link in itertools.pairwise(route)})
    loads, count = _loads(hops, used), len(number)
    # The last column is R. Of a device, the hops that leave it less R are 0, and so are those that enter it.
    balance = np.hstack(
        [np.vstack([ends[:, 0] == np.c_[:count], ends[:, 1] == np.c_[:count]]), -np.ones((2 * count, 1))]
    )
    # Two devices alone do make a ring of their two hops; they have no pair to forbid.
    rows = [_inside(ends, pair) for pair in itertools.combinations(range(count), 2) if count > len(pair)]
    while True:
        rates = optimize.linprog(
            # linprog minimises, so R, the last column, counts as −1.
            np.append(np.zeros(len(hops)), -1.0),
            A_ub=np.vstack([loads, *rows]),
            b_ub=np.append([float(slots[link]) for link in used], np.zeros(len(rows))),
            A_eq=balance,
            b_eq=np.zeros(2 * count),
            bounds=(0, None),
            method="highs-ds",
        ).x
        found = [row for group in _linked(ends, rates, count) if (row := _inside(ends, group)) @ rates > _NEARLY_NONE]
        if not found:
            # Rounded down, because rings are whole; but 3.9999999 is a 4 of the solver, and 3 would end the search too
            # early.
            return min(int(rates[-1] + _NEARLY_NONE), _MOST_RINGS)
        # Each round forbids sets that were not forbidden before, and there are finitely many, so the loop ends.
        rows += found


def _loads(hops: Mapping[Ends, Route], links: Sequence[Ends]) -> Array:
    """Return how often each hop crosses each link, and a column of zeros."""
    # The column of R is 0 in these rows: how many rings there are loads no link, only their hops do.
    row_of = {link: row for row, link in enumerate(links)}
    loads = np.zeros((len(links), len(hops) + 1))
    for column, route in enumerate(hops.values()):
        for link in itertools.pairwise(route):
            loads[row_of[link], column] += 1
    return loads


def _inside(ends: Array, group: Collection[int]) -> Array:
    """Return the constraint that rings do not close within a group, as a row whose product with the rates is ≤ 0."""
    # Σ rates inside − (size − 1)·R ≤ 0: a path through all of the group has size − 1 hops, a closed ring one more.
    return np.append(np.isin(ends, [*group]).all(axis=1), 1.0 - len(group))


def _linked(ends: Array, rates: Array, count: int) -> Iterator[frozenset[int]]:
    """Yield the groups of more than two devices, but not all, that single linkage joins, the most used hops first."""
    weights = np.zeros((count, count))
    np.add.at(weights, tuple(ends.T), rates[:-1])
    # Both directions count, because a subtour may run either way. A group that few hops leave is joined to others late,
    # so it is among those that are yielded.
    weights += weights.T
    group_of = [frozenset([device]) for device in range(count)]
    for pair in np.argsort(-weights, axis=None, kind="stable").tolist():
        first, second = divmod(pair, count)
        if group_of[first] is not group_of[second]:
            joined = group_of[first] | group_of[second]
            for device in joined:
                group_of[device] = joined
            if 2 < len(joined) < count:  # noqa: PLR2004 - pairs have their constraints
                yield joined
