"""Reductions along a machine's own trees: which machine, which trees, and which pack takes which."""

from __future__ import annotations

import bisect
import itertools
import threading
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

from treefold.errors import ArgumentError
from treefold.packing import Item, Pack, PackingPolicy, PackLayout, split_by_shares
from treefold.planners import PlanBuilder

if TYPE_CHECKING:
    from treefold.planners.tree_packing import TreePacking
    from treefold.topology import Topology

#: Its multiples fall evenly between 0 and 1, however many there are.
_GOLDEN = Fraction(75025, 121393)


def read_topology(value: object) -> Topology | None:
    """Return the machine that a ``topology=`` argument names: itself, a known name, or a file.

    Raises:
        ArgumentError: it is none of these.
        TopologyError: no machine has this name.
        ParseError: the file does not hold a topology.

    """
    if value is None:
        return None
    from treefold.topology import Topology, known_topology  # noqa: PLC0415 - only for who plans by a machine
    from treefold.topology.load import load_topology  # noqa: PLC0415 - as above

    if isinstance(value, Topology):
        return value
    if isinstance(value, Path) or (isinstance(value, str) and Path(value).is_file()):
        return load_topology(value)
    if isinstance(value, str):
        return known_topology(value)
    raise ArgumentError.topology(value)


class MachineTrees:
    """The trees of one machine for any of its devices, found once. Safe to use from many threads."""

    def __init__(self, topology: Topology, num_packs: int | str) -> None:
        """Remember the machine; ``num_packs`` ≥ 1: so many trees of equal share, else as many as the optimum takes."""
        self._topology = topology
        self._packs = num_packs if isinstance(num_packs, int) and num_packs >= 1 else None
        self._found: dict[tuple[str, ...], TreePacking] = {}
        self._lock = threading.Lock()

    def of(self, sources: Sequence[str]) -> TreePacking:
        """Return the trees that join these devices.

        Raises:
            TopologyError: the machine does not have them.
            MissingExtraError: SciPy is not installed.

        """
        from treefold.planners.tree_packing import optimal_packing  # noqa: PLC0415 - as above

        devices = tuple(dict.fromkeys(sources))
        with self._lock:
            if devices not in self._found:
                self._found[devices] = optimal_packing(self._topology, devices, self._packs)
            return self._found[devices]

    def layouts(self, policy: PackingPolicy, items: Sequence[Item], sources: tuple[str, ...]) -> tuple[PackLayout, ...]:
        """Cut values into one pack per tree, by its share; or as the policy says, where it does not go by packs."""
        if not _goes_by_packs(policy):
            return policy.layouts(items, len(set(sources)))
        shares = [tree.share for tree in self.of(sources).trees]
        by_dtype: dict[str, list[Item]] = {}
        for item in items:
            by_dtype.setdefault(item.dtype, []).append(item)
        return tuple(PackLayout(dtype, split_by_shares(group, shares)) for dtype, group in by_dtype.items())

    def add_pack(self, policy: PackingPolicy, builder: PlanBuilder, pack: Pack, number: int) -> None:
        """Plan a pack along its tree: the one that it was cut for, or one of all in proportion to their shares."""
        from treefold.planners.tree_packing import add_tree  # noqa: PLC0415 - as above

        trees = self.of(builder.work[pack.fragments[0].leaf].sources).trees
        if _goes_by_packs(policy):
            index = number % len(trees)
        else:
            ends = list(itertools.accumulate(tree.share for tree in trees))
            index = bisect.bisect_right(ends, (number * _GOLDEN) % 1 * ends[-1])
        add_tree(builder, pack, trees[index])


def _goes_by_packs(policy: PackingPolicy) -> bool:
    return not policy.bytes_per_pack and policy.num_packs != 0
