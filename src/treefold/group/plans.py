"""The plan of a group's call: proved on every rank before the call runs, and compared by its number."""

from __future__ import annotations

from collections.abc import Sequence

from treefold.calls.entry import Entry
from treefold.execution.registry import SHARED_MEMORY
from treefold.fold import Fold
from treefold.group.link import HostLink
from treefold.plan import Plan
from treefold.plan.ir import Leaf
from treefold.planners import LeafWork, PlanBuilder, add_one_pass

_NUMBER_DIGITS = 16


class GroupPlans:
    """The plan of one kind of call, for the numbers of replicas that the ranks had last."""

    def __init__(self, entry: Entry, link: HostLink, fold: Fold) -> None:
        """Begin without a plan."""
        self._entry, self._link, self._fold = entry, link, fold
        self.replicas: tuple[int, ...] = ()
        self.plan: Plan | None = None
        self._number = 0

    def number(self, replicas: int) -> int:
        """Return the number by which ranks compare their plans; 0 if there is none for so many replicas here."""
        return self._number if self.replicas and self.replicas[self._link.rank] == replicas else 0

    def make(self, replicas: Sequence[int]) -> None:
        """Plan the call, and prove the plan, for so many replicas of each rank."""
        self.replicas = tuple(replicas)
        self.plan = plan_of(self._entry, self._fold, self.replicas)
        self._number = int(self.plan.digest[:_NUMBER_DIGITS], 16)


def plan_of(entry: Entry, fold: Fold, replicas: Sequence[int]) -> Plan:
    """Return the plan of an all-reduce of the entry's leaves by ranks with so many replicas each."""
    sources = tuple(_device(rank, index) for rank, count in enumerate(replicas) for index in range(count))
    ends = tuple(_device(rank, 0) for rank in range(len(replicas)))
    work = [
        LeafWork(Leaf(part.dtype, part.goal), part.lengths[:1] * len(sources), sources, ends) for part in entry.parts
    ]
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
