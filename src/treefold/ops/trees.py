"""Reductions along a machine's own trees: which machine, which trees, and which pack takes which."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

from treefold.bounded_cache import BoundedCache
from treefold.dtypes import itemsize
from treefold.errors import ArgumentError
from treefold.ops.planning import Router
from treefold.packing import Item, Pack, PackingPolicy, by_dtype, split_by_shares
from treefold.planners import PlanBuilder

if TYPE_CHECKING:
    from treefold.planners.compare import Comparison
    from treefold.planners.method import Method
    from treefold.topology import Topology

#: Sets of devices of one machine whose methods are kept.
_MOST_SETS = 256
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
    from pathlib import Path  # noqa: PLC0415 - only for who plans by a machine

    from treefold.topology import Topology, known_topology  # noqa: PLC0415 - as above
    from treefold.topology.load import load_topology  # noqa: PLC0415 - as above

    if isinstance(value, Topology):
        return value
    if isinstance(value, Path) or (isinstance(value, str) and Path(value).is_file()):
        return load_topology(value)
    if isinstance(value, str):
        return known_topology(value)
    raise ArgumentError.option(topology=value)


class MachineTrees:
    """The trees of one machine for any of its devices, found once. Safe to use from many threads."""

    def __init__(self, topology: Topology, num_packs: int | str) -> None:
        """Remember the machine; ``num_packs`` ≥ 1: so many trees of equal share, else what is quickest for the size."""
        self._topology = topology
        self._packs = num_packs if isinstance(num_packs, int) and num_packs >= 1 else None
        self._comparisons: BoundedCache[tuple[str, ...], Comparison] = BoundedCache(_MOST_SETS)

    def check_devices(self, devices: Sequence[str]) -> None:
        """Refuse devices that the machine does not have or does not join.

        Raises:
            TopologyError: naming them.

        """
        self._topology.restricted(tuple(dict.fromkeys(devices)))

    def router(self, policy: PackingPolicy, root: Callable[[Sequence[str]], str]) -> Router:
        """Return how the values of one call travel: one pack per tree, or packs as the policy says over the trees."""
        methods: list[tuple[Method, int]] = []  # of each pack that packs made, in order, and which share it has

        def packs(items: Sequence[Item], sources: tuple[str, ...]) -> tuple[Pack, ...]:
            devices = tuple(dict.fromkeys(sources))
            if policy.bytes_per_pack or policy.num_packs == 0:
                found = policy.packs(items, len(devices))
                method = self._method(devices, sum(item.length * itemsize(item.dtype) for item in items))
                methods.extend((method, _in_turn(method.shares, number)) for number in range(len(found)))
                return found
            made = list[Pack]()
            for group in by_dtype(items):
                method = self._method(devices, sum(item.length for item in group) * itemsize(group[0].dtype))
                made += split_by_shares(group, method.shares)
                methods.extend((method, number) for number in range(len(method.shares)))
            return tuple(made)

        def add_pack(builder: PlanBuilder, pack: Pack, number: int) -> None:
            method, share = methods[number]
            method.add_pack(builder, pack, share)

        return Router(packs, add_pack, root)

    def _method(self, devices: tuple[str, ...], nbytes: int) -> Method:
        """Return the method for so many bytes: sizes are told apart by factors of four.

        Raises:
            TopologyError: the machine does not have these devices.
            MissingExtraError: SciPy is not installed.

        """
        from treefold.planners.choose import LARGEST, SMALLEST  # noqa: PLC0415 - only for who plans by a machine
        from treefold.planners.compare import Comparison  # noqa: PLC0415 - as above

        comparison = self._comparisons.made(devices, lambda: Comparison(self._topology.restricted(devices)))
        if self._packs is not None:
            return comparison.methods[f"trees#{self._packs}"]
        if len(devices) == 1:
            return comparison.methods["trees"]
        size = SMALLEST
        while size < min(nbytes, LARGEST):
            size *= 4
        return comparison.methods[comparison.best(size)]


def _in_turn(shares: Sequence[Fraction], number: int) -> int:
    """Return which share takes a pack that was not cut for one: each in proportion, over any run of packs."""
    ends = list(itertools.accumulate(shares))
    return bisect.bisect_right(ends, (number * _GOLDEN) % 1 * ends[-1])
