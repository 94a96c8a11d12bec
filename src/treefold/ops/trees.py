"""Reductions along a machine's own trees: which machine, which trees, and which pack takes which."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

from treefold.dtypes import itemsize
from treefold.ops.planning import Router
from treefold.packing import Item, Pack, PackingPolicy, by_dtype, split_by_shares
from treefold.planners import PlanBuilder

if TYPE_CHECKING:
    from treefold.planners.method import Method
    from treefold.topology import Topology

#: Its multiples fall evenly between 0 and 1, however many there are.
_GOLDEN = Fraction(75025, 121393)


def read_topology(value: object) -> Topology | None:
    """Return the machine that a ``topology=`` argument names, None for None.

    Raises:
        ArgumentError: it is neither a ``Topology``, nor a known name, nor a file.
        TopologyError: no machine has this name.
        ParseError: the file does not hold a topology.

    """
    if value is None:
        return None
    from treefold.topology import for_ops  # noqa: PLC0415 - callers that name no machine do not load the wing

    return for_ops.read_topology(value)


class MachineTrees:
    """The trees of one machine for any of its devices, found once. Safe to use from many threads."""

    def __init__(self, topology: Topology, num_packs: int | str) -> None:
        """Remember the machine; ``num_packs`` ≥ 1: so many trees of equal share, else what is quickest for the size."""
        from treefold.topology.for_ops import MethodsBySize  # noqa: PLC0415 - as above

        self._topology = topology
        self._methods = MethodsBySize(topology, num_packs)

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
                method = self._methods.method(devices, sum(item.length * itemsize(item.dtype) for item in items))
                methods.extend((method, _in_turn(method.shares, number)) for number in range(len(found)))
                return found
            made = list[Pack]()
            for group in by_dtype(items):
                method = self._methods.method(devices, sum(item.length for item in group) * itemsize(group[0].dtype))
                made += split_by_shares(group, method.shares)
                methods.extend((method, number) for number in range(len(method.shares)))
            return tuple(made)

        def add_pack(builder: PlanBuilder, pack: Pack, number: int) -> None:
            method, share = methods[number]
            method.add_pack(builder, pack, share)

        return Router(packs, add_pack, root)


def _in_turn(shares: Sequence[Fraction], number: int) -> int:
    """Return which share takes a pack that was not cut for one: each in proportion, over any run of packs."""
    ends = list(itertools.accumulate(shares))
    return bisect.bisect_right(ends, (number * _GOLDEN) % 1 * ends[-1])
