"""The plan of a group's call: proved on every rank before the call runs, and compared by its number."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fractions import Fraction

from treefold.calls.entry import Entry
from treefold.devices import rank_of
from treefold.dtypes import WIDE_INTEGERS, itemsize
from treefold.fold import Fold, exact_bytes
from treefold.group.protocol import FRAME_ROOM
from treefold.keyed import grouped
from treefold.observing import announced, warn
from treefold.plan import Plan
from treefold.plan.actions import dtype_in
from treefold.plan.ir import Copy, Leaf, Role
from treefold.plan.plan import HOSTS, SHARED_MEMORY
from treefold.planners import LeafWork, PlanBuilder, add_one_pass, add_one_shot
from treefold.planners.direct import MOST_AS_THEY_ARE, direct
from treefold.planners.packing import Item, split_by_shares
from treefold.reduce_op import ReduceOp

_NUMBER_DIGITS = 16
_ALIGNED = 16
_WHOLE = (Fraction(1),)
#: Users are told of ``per_plan`` if more than this multiple of the least bytes travels between hosts.
_MOST_TIMES = 2


@dataclass(frozen=True, slots=True)
class RankLayout:
    """The hosts of a group and its guarantee. Plans depend on nothing else, except the call.

    Attributes:
        hosts: The ranks of each host.
        guarantee: ``"exact"`` or ``"per_plan"``.
        shares: The share of the elements that each host folds, in any unit; None: equal shares.

    """

    hosts: tuple[tuple[int, ...], ...]
    guarantee: str = "exact"
    shares: tuple[Fraction, ...] | None = None

    @property
    def size(self) -> int:
        """The number of ranks."""
        return sum(map(len, self.hosts))

    def host_of(self, rank: int) -> tuple[int, ...]:
        """Return the ranks of a rank's host."""
        return next(host for host in self.hosts if rank in host)


@dataclass(frozen=True, slots=True)
class Reduction:
    """A reduction of all ranks, and the ranks that get its result.

    Attributes:
        entry: The value of this rank.
        fold: The arithmetic.
        collective: ``"all_reduce"``, ``"reduce"`` to the rank ``root``, or ``"reduce_scatter"``. For the last one the
            entry has the leaves of rank 0's part, then those of rank 1's, and so on.
        root: The rank that gets the result of ``"reduce"``.
        is_weighted: Whether replicas have weights, which are not known before the call.

    """

    entry: Entry
    fold: Fold
    collective: str = "all_reduce"
    root: int = 0
    is_weighted: bool = False

    def work(self, replicas: Sequence[int]) -> list[LeafWork]:
        """Return the work for planners, one item a leaf, given the number of replicas on each rank."""
        everyone, parts = tuple(_device(rank, 0) for rank in range(len(replicas))), self.entry.parts
        owners = [everyone] * len(parts)
        if self.collective == "reduce":
            owners = [(everyone[self.root],)] * len(parts)
        elif self.collective == "reduce_scatter":
            owners = [(device,) for device in everyone for _ in range(len(parts) // len(everyone))]
        sources = tuple(_device(rank, one) for rank, count in enumerate(replicas) for one in range(count))
        return [
            LeafWork(Leaf(part.dtype, part.goal), part.lengths[:1] * len(sources), sources, own)
            for part, own in zip(parts, owners, strict=True)
        ]

    def is_inline(self, replicas: Sequence[int]) -> bool:
        """Return whether contributions are small enough to travel in the frames in which ranks compare their calls."""
        nbytes = sum(padded(part.lengths[0] * itemsize(part.dtype)) for part in self.entry.parts)
        return 0 < max(replicas) * nbytes <= FRAME_ROOM

    def folds_per_host(self, dtype: str, replicas: Sequence[int], layout: RankLayout) -> bool:
        """Return whether the replicas of a host are folded before they travel.

        Weighted replicas never are. Others always are where the order of folds cannot change a bit. Elsewhere they are
        if the guarantee is ``per_plan`` and fewer bytes travel then. Partial sums of 16-bit floats travel in a wider
        dtype, and so do those of integers for a mean: in their own dtype they may overflow where the result does not.
        For means of 64-bit integers no dtype is wide enough, so these are not folded.
        """
        fold = self.fold
        if self.is_weighted or fold.has_any_order(dtype):
            return not self.is_weighted
        if layout.guarantee != "per_plan" or (fold.op is ReduceOp.MEAN and dtype in WIDE_INTEGERS):
            return False
        counts = [sum(replicas[rank] for rank in ranks) for ranks in layout.hosts]
        one, partial = itemsize(dtype), itemsize(fold.partial_dtype(dtype))
        return sum(partial if count > 1 else one for count in counts) < sum(counts) * one

    def adds_per_host(self, dtype: str, replicas: Sequence[int], layout: RankLayout) -> bool:
        """Return whether hosts with many replicas send one exact partial sum in place of the replicas."""
        is_unknown = self.is_weighted and self.fold.weights is None
        if is_unknown or layout.guarantee != "exact" or not self.fold.has_exact_partials(dtype):
            return False
        return any(sum(replicas[rank] for rank in ranks) > MOST_AS_THEY_ARE for ranks in layout.hosts)


class GroupPlans:
    """The plan of one kind of call, for the numbers of replicas that the ranks had last."""

    def __init__(self, reduction: Reduction, layout: RankLayout, rank: int) -> None:
        """Begin without a plan."""
        self._reduction, self._layout, self._rank = reduction, layout, rank
        #: The number of replicas of this rank.
        self.own = reduction.entry.num_replicas
        self.replicas: tuple[int, ...] = ()
        self.plan: Plan | None = None
        #: Whether ranks tell each other all contributions, so that nothing else has to travel.
        self.is_inline = False
        self._number = 0

    @property
    def number(self) -> int:
        """The number by which ranks compare their plans; 0 if there is none for this rank's numbers of replicas."""
        return self._number if self.replicas and self.replicas[self._rank] == self.own else 0

    def take(self, fold: Fold) -> None:
        """Forget the plan if partial sums with a call's weights travel in another form than it was made for."""
        if fold.are_weights_short != self._reduction.fold.are_weights_short:
            self._reduction, self.replicas = dataclasses.replace(self._reduction, fold=fold), ()

    def make(self, replicas: tuple[int, ...]) -> None:
        """Plan the call, and prove the plan, for as many replicas as each rank has."""
        self.replicas = replicas
        self.plan = announced(plan_of(self._reduction, replicas, self._layout))
        self.is_inline = self._reduction.is_inline(replicas)
        self._number = int(self.plan.digest[:_NUMBER_DIGITS], 16)


def plan_of(reduction: Reduction, replicas: Sequence[int], layout: RankLayout) -> Plan:
    """Return the plan of a reduction, given the number of replicas on each rank."""
    builder = PlanBuilder(reduction.work(replicas))
    algorithm, is_exact, notes = "direct", False, tuple[str, ...]()
    executor = SHARED_MEMORY if len(layout.hosts) == 1 else HOSTS
    if executor == SHARED_MEMORY:
        for index in range(len(builder.work)):
            add_one_pass(builder, index)
    elif reduction.is_inline(replicas):
        algorithm = "one shot"
        for items in _alike(builder):
            [pack] = split_by_shares(items, _WHOLE)
            add_one_shot(builder, pack)
    else:
        algorithm, is_exact = _add_direct(builder, reduction, replicas, layout)
        if reduction.collective == "all_reduce":
            notes = _bytes_in_words(builder, reduction, replicas, layout)
    return Plan(
        leaves=builder.leaves,
        buffers=builder.buffers,
        steps=builder.steps,
        collective="all_reduce" if reduction.collective == "all_reduce" else "reduce",
        algorithm=algorithm,
        paths=tuple(part.path for part in reduction.entry.parts),
        executor=executor,
        kernel="native",  # the same name on all ranks, whatever proves sums exact there
        accumulate=reduction.fold.manner,
        notes=notes,
        is_exact=is_exact,
    )


def padded(nbytes: int) -> int:
    """Return the room in bytes that a contribution of ``nbytes`` takes in a frame: rounded up to the alignment."""
    return -(-nbytes // _ALIGNED) * _ALIGNED


def _alike(builder: PlanBuilder) -> Collection[list[Item]]:
    """Return the leaves that may travel together: of one dtype, to the same ranks."""
    return grouped(
        ((one.leaf.dtype, one.destinations), Item(index, one.leaf.dtype, one.result_length))
        for index, one in enumerate(builder.work)
        if one.result_length
    ).values()


def _add_direct(
    builder: PlanBuilder, reduction: Reduction, replicas: Sequence[int], layout: RankLayout
) -> tuple[str, bool]:
    """Give every rank a slice of each result to own; a result that only one rank gets is owned by that rank.

    Return the method in words, and whether partial folds travel that have the same bits in any order.
    """
    words, are_exact = ["direct"], list[bool]()
    for items in _alike(builder):
        dtype = items[0].dtype
        folds_first = reduction.folds_per_host(dtype, replicas, layout)
        adds = reduction.adds_per_host(dtype, replicas, layout)
        method = direct(layout.hosts, layout.shares, is_folded_per_host=folds_first, adds_exactly=adds)
        words.append(method.words)
        are_exact += [reduction.fold.has_any_order(dtype)] * folds_first
        owner = rank_of(builder.work[items[0].leaf].destinations[0])
        if reduction.collective == "reduce_scatter" and owner is not None:
            [pack] = split_by_shares(items, _WHOLE)
            method.add_pack(builder, pack, owner)
            continue
        for number, pack in enumerate(split_by_shares(items, method.shares)):
            if pack.length:
                method.add_pack(builder, pack, number)
    return max(words, key=len), bool(are_exact) and all(are_exact)


def _bytes_in_words(
    builder: PlanBuilder, reduction: Reduction, replicas: Sequence[int], layout: RankLayout
) -> tuple[str, ...]:
    """Return a note with the bytes that travel between hosts; warn, once per layout, if far fewer would do."""
    times = _times_the_least(builder, reduction.fold, layout)
    if times is None:
        return ()
    words = f"{float(times):.3g} times the least bytes of an all-reduce"
    folding = dataclasses.replace(layout, guarantee="per_plan")
    could_fold = any(reduction.folds_per_host(one.leaf.dtype, replicas, folding) for one in builder.work)
    if times > _MOST_TIMES and could_fold and layout.guarantee != "per_plan" and layout not in _warned:
        _warned.add(layout)
        warn(
            f"Between hosts travel {words}: hosts have several replicas each, and all go to where they are folded. "
            'connect(guarantee="per_plan") folds those of a host first; its bits depend on the plan.',
            stacklevel=2,
        )
    return (f"between hosts travel {words}",)


def _times_the_least(builder: PlanBuilder, fold: Fold, layout: RankLayout) -> Fraction | None:
    """Return the ratio of the bytes that travel between hosts to the least, or None if none have to.

    The least is what an all-reduce needs: each slice travels once to its owner, and once back.
    """
    host_of = {rank: host for host, ranks in enumerate(layout.hosts) for rank in ranks}
    hosts = [host_of[rank_of(buffer.device) or 0] for buffer in builder.buffers]
    moved, least = 0, 0
    for step in builder.steps:
        for action in step.actions:
            if isinstance(action, Copy) and hosts[action.source.buffer] != hosts[action.target.buffer]:
                buffer = builder.buffers[action.source.buffer]
                leaf, length = builder.leaves[buffer.leaf], action.source.length
                if buffer.role is Role.EXACT:
                    moved += exact_bytes(leaf.dtype, length)
                else:
                    moved += length * itemsize(dtype_in(buffer.role, leaf, fold))
    for one in builder.work:
        there, back = (itemsize(dtype_in(role, one.leaf, fold)) for role in (Role.INPUT, Role.OUTPUT))
        least += (len(layout.hosts) - 1) * one.result_length * (there + back)
    return Fraction(moved, least) if least else None


def _device(rank: int, index: int) -> str:
    return f"{rank}/cpu:{index}"


#: The layouts of groups that have been warned.
_warned: set[RankLayout] = set()
