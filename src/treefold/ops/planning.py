"""From validated values to a checked plan: what it depends on, and how values travel, along a machine's trees, too."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING

from treefold.calls.entry import Entry
from treefold.devices import device_type
from treefold.dtypes import WIDE_INTEGERS, itemsize
from treefold.execution import LOCAL, CallSummary, Executor, choose_executor
from treefold.fold import Fold
from treefold.options import CommunicationOptions
from treefold.plan import Plan
from treefold.plan.ir import Goal, Leaf
from treefold.plan.plan import EXECUTORS
from treefold.planners import LeafWork, PlanBuilder, add_broadcast, add_concat, add_one_pass, add_star
from treefold.planners.method import AddPack, Method
from treefold.planners.packing import Item, Pack, PackingPolicy, by_dtype, split_by_shares

if TYPE_CHECKING:
    from treefold.topology import Topology

#: Its multiples fall evenly between 0 and 1, however many there are.
_GOLDEN = Fraction(75025, 121393)


@dataclass(frozen=True, slots=True)
class Router:
    """How values whose destinations are their own devices travel, and where the others meet.

    ``packs``: cuts the values of one list of devices into packs. ``add_pack``: plans one pack, by its number among
    all packs of the plan, those without elements included. ``root``: the device on which a value is reduced that does
    not travel this way. ``meets``: whether all contributions to a pack meet as they are, wherever they travel.
    """

    packs: Callable[[Sequence[Item], tuple[str, ...]], tuple[Pack, ...]]
    add_pack: AddPack
    root: Callable[[Sequence[str]], str]
    meets: bool = False


@dataclass(frozen=True, slots=True)
class ReductionTerms:
    """What an ops object says of a reduction, whatever carries it.

    ``own_devices``: those that the ops object itself names. ``root``: the device on which a value is reduced that no
    plan carries, by its destinations.
    """

    fold: Fold
    own_devices: tuple[str, ...]
    root: Callable[[Sequence[str]], str]


@dataclass(frozen=True)
class PlanRequest:
    """Everything that a plan depends on."""

    collective: str
    algorithm: str
    entries: tuple[Entry, ...]
    call: CallSummary
    options: CommunicationOptions = field(default_factory=CommunicationOptions)
    policy: PackingPolicy = field(default_factory=PackingPolicy)
    is_weighted: bool = False
    notes: tuple[str, ...] = ()
    asked: Executor | None = None
    is_walked: bool = False

    @cached_property
    def work(self) -> tuple[LeafWork, ...]:
        """What the planners see: no arrays."""
        return tuple(
            LeafWork(Leaf(part.dtype, part.goal), part.lengths, entry.sources, entry.destinations)
            for entry in self.entries
            for part in entry.parts
        )

    @cached_property
    def paths(self) -> tuple[str, ...]:
        """Where each leaf stands in the caller's values."""
        is_batch = len(self.entries) > 1
        return tuple(
            f"[{index}]{part.path}" if is_batch else part.path
            for index, entry in enumerate(self.entries)
            for part in entry.parts
        )

    @cached_property
    def executor(self) -> Executor:
        """What runs the plan: the one asked for if it can, else whatever runs such calls.

        With ``is_walked`` step by step: what devices with memories of their own would do is asked for.
        """
        return LOCAL if self.is_walked else choose_executor(self.call, self.asked)

    @property
    def is_on_one_memory(self) -> bool:
        """Whether the executor folds each element once: on one memory, a tree would only move it more often."""
        return EXECUTORS[self.executor.name].runs_in_one_pass(self.call.devices)

    @property
    def key(self) -> Hashable:
        """What a cached plan is found by."""
        how = (self.executor.name, self.call.accumulate, self.policy, self.is_weighted, self.notes)
        return (self.collective, self.work, self.paths, self.call.frameworks, *how)


def summarise(entries: Sequence[Entry], accumulate: str = "wide", own_devices: tuple[str, ...] = ()) -> CallSummary:
    """Return what executors are told of a call; ``own_devices``: those that its ops object names."""
    parts = [part for entry in entries for part in entry.parts]
    devices = frozenset(own_devices).union(*[(*entry.sources, *entry.destinations) for entry in entries])
    is_host = all(device_type(device) == "cpu" for device in devices)
    return CallSummary(
        frameworks=tuple([part.operand.backend.name for part in parts]),
        routes=tuple([(entry.sources, entry.destinations) for entry in entries]),
        devices=devices,
        accumulate=accumulate,
        is_in_host_memory=is_host and all(part.is_in_host_memory for part in parts),
    )


def make_plan(request: PlanRequest, router: Router) -> Plan:
    """Plan a request and prove the plan.

    What lies on one memory is folded in one pass, without a tree. Elsewhere, values of one framework whose destinations
    are their own devices are packed together, per list of devices, and travel as the router says; the others, one by
    one, meet on its root of their destinations.
    """
    builder = PlanBuilder(request.work)
    executor, accumulate = request.executor, request.call.accumulate
    if request.is_on_one_memory:
        for index in range(len(request.work)):
            add_one_pass(builder, index)
    else:
        _add_packs(builder, request, router)
    return Plan(
        leaves=builder.leaves,
        buffers=builder.buffers,
        steps=builder.steps,
        collective=request.collective,
        algorithm=request.algorithm,
        executor=executor.name,
        kernel=executor.kernel,
        # Devices have no exact sums: theirs are accumulated wide.
        accumulate="wide" if accumulate == "exact" and not executor.kernel else accumulate,
        paths=request.paths,
        notes=request.notes,
    )


def _add_packs(builder: PlanBuilder, request: PlanRequest, router: Router) -> None:
    """Plan the packs of a request, each along its own tree."""
    groups: dict[tuple[tuple[str, ...], tuple[str, ...], str], list[Item]] = {}
    for index, (work, framework) in enumerate(zip(request.work, request.call.frameworks, strict=True)):
        if work.leaf.goal is Goal.COPY:
            add_broadcast(builder, index)
        elif work.leaf.goal is not Goal.FOLD:
            add_concat(builder, index, router.root(work.destinations))
        else:
            item = Item(index, work.leaf.dtype, work.result_length)
            groups.setdefault((work.sources, work.destinations, framework), []).append(item)
    number = 0
    for (sources, destinations, _), items in groups.items():
        matches = set(sources) == set(destinations)
        for pack in router.packs(items, sources) if matches else PackingPolicy().packs(items, 0):
            if matches and pack.length and (router.meets or not _must_meet(request, pack.dtype)):
                router.add_pack(builder, pack, number)
            elif pack.length:
                add_star(builder, pack, router.root(destinations))
            number += 1


def _must_meet(request: PlanRequest, dtype: str) -> bool:
    """Whether partial folds must not travel, because they would lose what the fold needs, as in 64 bits."""
    return request.is_weighted or dtype in WIDE_INTEGERS


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
