"""The plan of a group's call: proved on every rank before the call runs, and compared by its number."""

from __future__ import annotations

import json
from collections.abc import Sequence

from treefold.calls.entry import Entry
from treefold.errors import UnplannedCallError
from treefold.execution.registry import SHARED_MEMORY
from treefold.fold import Fold
from treefold.group.contributions import KIND
from treefold.group.link import HostLink
from treefold.plan import Plan
from treefold.plan.ir import Leaf
from treefold.planners import LeafWork, PlanBuilder, add_one_pass

_NUMBER_DIGITS = 16
_COUNTS = 21


#: How many replicas a rank has: one number, or one for each leaf if they differ.
Counts = tuple[int, ...]


class GroupPlans:
    """The plan of one kind of call, for the numbers of replicas that the ranks had last."""

    def __init__(self, entry: Entry, link: HostLink, fold: Fold) -> None:
        """Begin without a plan."""
        self._entry, self._link, self._fold = entry, link, fold
        self.replicas: tuple[Counts, ...] = ()
        self.plan: Plan | None = None
        self._number = 0
        #: Of each leaf, rank by rank, if some rank has leaves that differ; else nothing.
        self.counts: Sequence[Counts] = ()

    def number(self, replicas: Counts) -> int:
        """Return the number by which ranks compare their plans; 0 if there is none for so many replicas here."""
        return self._number if self.replicas and self.replicas[self._link.rank] == replicas else 0

    def make(self, own: Counts, unplanned: UnplannedCallError) -> None:
        """Plan the call, and prove the plan, for as many replicas as each rank has."""
        self.replicas = tuple((count,) for count in unplanned.replicas)
        if unplanned.are_mixed:
            said = self._link.agree(
                KIND.pack(_COUNTS, 0, 0, 0, bytes(16)), json.dumps(own).encode(), words="numbers of replicas"
            )
            self.replicas = tuple(tuple(json.loads(blob)) for blob in said)
        of_leaves = [counts * len(self._entry.parts) if len(counts) == 1 else counts for counts in self.replicas]
        self.counts = of_leaves if unplanned.are_mixed else ()
        self.plan = plan_of(self._entry, self._fold, of_leaves)
        self._number = int(self.plan.digest[:_NUMBER_DIGITS], 16)


def counts_of(entry: Entry) -> Counts:
    """Return how many replicas this rank brings to each leaf."""
    counts = tuple(len(part.lengths) for part in entry.parts)
    return counts if len(set(counts)) > 1 else counts[:1] or (entry.num_replicas,)


def plan_of(entry: Entry, fold: Fold, replicas: Sequence[Counts]) -> Plan:
    """Return the plan of an all-reduce of the entry's leaves, of which each rank has so many replicas each."""
    ends = tuple(_device(rank, 0) for rank in range(len(replicas)))
    work = []
    for index, part in enumerate(entry.parts):
        sources = tuple(_device(rank, one) for rank, counts in enumerate(replicas) for one in range(counts[index]))
        work.append(LeafWork(Leaf(part.dtype, part.goal), part.lengths[:1] * len(sources), sources, ends))
    builder = PlanBuilder(work)
    for index in range(len(work)):
        add_one_pass(builder, index)
    return Plan(
        leaves=builder.leaves,
        buffers=builder.buffers,
        steps=builder.steps,
        collective="all_reduce",
        algorithm="direct",
        paths=tuple(part.path for part in entry.parts),
        executor=SHARED_MEMORY.name,
        kernel=SHARED_MEMORY.kernel,
        accumulate=fold.accumulate,
    )


def _device(rank: int, index: int) -> str:
    return f"{rank}/cpu:{index}"
