"""The plan of a group's call: proved on every rank before the call runs, and compared by its number."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from treefold.calls.entry import Entry
from treefold.errors import UnplannedCallError
from treefold.execution.registry import HOSTS, SHARED_MEMORY
from treefold.fold import Fold
from treefold.group.contributions import KIND
from treefold.packing import Item, by_dtype, split_by_shares
from treefold.plan import Plan
from treefold.plan.ir import Leaf
from treefold.planners import LeafWork, PlanBuilder, add_one_pass
from treefold.planners.direct import direct

if TYPE_CHECKING:
    from treefold.group.link import Link

_NUMBER_DIGITS = 16
_COUNTS = 21


#: How many replicas a rank has: one number, or one for each leaf if they differ.
Counts = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the ranks are, and what their results promise: all that plans of a group depend on, beside the call.

    ``hosts``: the ranks of each host. ``shares``: what each host folds, in any unit; equal parts if there are none.
    """

    hosts: tuple[tuple[int, ...], ...]
    guarantee: str = "replica_order"
    shares: tuple[Fraction, ...] | None = None

    @property
    def size(self) -> int:
        """The number of ranks."""
        return sum(map(len, self.hosts))

    def host_of(self, rank: int) -> tuple[int, ...]:
        """Return the ranks of a rank's host."""
        return next(host for host in self.hosts if rank in host)

    def folds_per_host(self, fold: Fold, dtypes: Sequence[str]) -> bool:
        """Tell whether the replicas of a host may be folded before they travel.

        Always where no order of the folds changes a bit; else if the guarantee says so.
        """
        if fold.weights is not None:
            return False
        return self.guarantee == "per_plan" or all(fold.has_any_order(dtype) for dtype in dtypes)


class GroupPlans:
    """The plan of one kind of call, for the numbers of replicas that the ranks had last."""

    def __init__(self, entry: Entry, layout: Layout, rank: int, fold: Fold) -> None:
        """Begin without a plan."""
        self._entry, self._layout, self._rank, self._fold = entry, layout, rank, fold
        #: Of this rank.
        self.own = counts_of(entry)
        self.replicas: tuple[Counts, ...] = ()
        self.plan: Plan | None = None
        self._number = 0
        #: Of each leaf, rank by rank, if some rank has leaves that differ; else nothing.
        self.counts: Sequence[Counts] = ()

    @property
    def number(self) -> int:
        """The number by which ranks compare their plans; 0 if there is none for this rank's numbers of replicas."""
        return self._number if self.replicas and self.replicas[self._rank] == self.own else 0

    def make(self, link: Link, unplanned: UnplannedCallError) -> None:
        """Plan the call, and prove the plan, for as many replicas as each rank has."""
        self.replicas = tuple((count,) for count in unplanned.replicas)
        if unplanned.are_mixed:
            own = json.dumps(self.own).encode()
            said = link.agree(KIND.pack(_COUNTS, 0, 0, 0, bytes(16)), own, words="numbers of replicas")
            self.replicas = tuple(tuple(json.loads(blob)) for blob in said)
        of_leaves = [counts * len(self._entry.parts) if len(counts) == 1 else counts for counts in self.replicas]
        self.counts = of_leaves if unplanned.are_mixed else ()
        self.plan = plan_of(self._entry, self._fold, of_leaves, self._layout)
        self._number = int(self.plan.digest[:_NUMBER_DIGITS], 16)


def counts_of(entry: Entry) -> Counts:
    """Return how many replicas this rank brings to each leaf."""
    counts = tuple(len(part.lengths) for part in entry.parts)
    return counts if len(set(counts)) > 1 else counts[:1] or (entry.num_replicas,)


def plan_of(entry: Entry, fold: Fold, replicas: Sequence[Counts], layout: Layout) -> Plan:
    """Return the plan of an all-reduce of the entry's leaves, of which each rank has so many replicas each."""
    ends = tuple(_device(rank, 0) for rank in range(len(replicas)))
    work = []
    for index, part in enumerate(entry.parts):
        sources = tuple(_device(rank, one) for rank, counts in enumerate(replicas) for one in range(counts[index]))
        work.append(LeafWork(Leaf(part.dtype, part.goal), part.lengths[:1] * len(sources), sources, ends))
    builder = PlanBuilder(work)
    if len(layout.hosts) == 1:
        for index in range(len(work)):
            add_one_pass(builder, index)
    else:
        _add_direct(builder, layout, fold)
    executor = SHARED_MEMORY if len(layout.hosts) == 1 else HOSTS
    return Plan(
        leaves=builder.leaves,
        buffers=builder.buffers,
        steps=builder.steps,
        collective="all_reduce",
        algorithm="direct",
        paths=tuple(part.path for part in entry.parts),
        executor=executor.name,
        kernel=executor.kernel,
        accumulate=fold.accumulate,
    )


def _add_direct(builder: PlanBuilder, layout: Layout, fold: Fold) -> None:
    folds_first = layout.folds_per_host(fold, [one.leaf.dtype for one in builder.work])
    method = direct(layout.hosts, layout.shares, is_folded_per_host=folds_first)
    for items in by_dtype(Item(index, one.leaf.dtype, one.result_length) for index, one in enumerate(builder.work)):
        for number, pack in enumerate(split_by_shares(items, method.shares)):
            if pack.length:
                method.add_pack(builder, pack, number)


def _device(rank: int, index: int) -> str:
    return f"{rank}/cpu:{index}"
