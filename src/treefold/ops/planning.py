"""Turns validated values into a checked plan: which values travel together, and along which trees of a machine."""

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
from treefold.dtypes import INTEGERS, WIDE_INTEGERS, itemsize
from treefold.execution import LOCAL, CallSummary, Executor, choose_executor
from treefold.fold import Fold
from treefold.observing import LOG
from treefold.options import CommunicationOptions
from treefold.plan import Plan
from treefold.plan.ir import Goal, Leaf
from treefold.plan.plan import EXECUTORS
from treefold.planners import LeafWork, PlanBuilder, add_broadcast, add_concat, add_one_pass, add_star
from treefold.planners.method import AddPack, Method
from treefold.planners.packing import Item, Pack, PackingPolicy, by_dtype, split_by_shares

if TYPE_CHECKING:
    from treefold.topology import Topology

#: The golden ratio's fractional part: multiples of it, modulo 1, are spread evenly, however many there are.
_GOLDEN = Fraction(75025, 121393)


@dataclass(frozen=True, slots=True)
class Router:
    """How the values of one plan travel.

    Args:
        packs: Cuts the values of one list of devices into packs.
        add_pack: Plans one pack, given its number among all packs of the plan; packs without elements count.
        root: Returns the device that reduces a value which does not return to the devices that it lies on.
        meets: Whether every contribution reaches the fold as it is, by whatever route: no partial fold travels.

    """

    packs: Callable[[Sequence[Item], tuple[str, ...]], tuple[Pack, ...]]
    add_pack: AddPack
    root: Callable[[Sequence[str]], str]
    meets: bool = False


@dataclass(frozen=True, slots=True)
class ReductionTerms:
    """The part of an ops object's arguments that decides a reduction, whether or not a plan carries it.

    Args:
        fold: The arithmetic.
        own_devices: The devices that the ops object itself names.
        root: Returns the device that reduces a value, given its destinations, if no plan carries it.

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
        """The planners' view of the values, without arrays."""
        return tuple(
            LeafWork(Leaf(part.dtype, part.goal), part.lengths, entry.sources, entry.destinations)
            for entry in self.entries
            for part in entry.parts
        )

    @cached_property
    def paths(self) -> tuple[str, ...]:
        """The path of each leaf in the caller's values."""
        is_batch = len(self.entries) > 1
        return tuple(
            f"[{index}]{part.path}" if is_batch else part.path
            for index, entry in enumerate(self.entries)
            for part in entry.parts
        )

    @cached_property
    def executor(self) -> Executor:
        """The executor that runs the plan: the one asked for if it can, else the one chosen for such calls.

        With ``is_walked`` it is the local executor, which runs step by step, as devices with memories of their own
        need.
        """
        return LOCAL if self.is_walked else choose_executor(self.call, self.asked)

    @cached_property
    def accumulate(self) -> str:
        """How contributions are accumulated: wide where exact sums are asked for, and the executor has none."""
        asked = self.call.accumulate
        return "wide" if asked == "exact" and not self.executor.is_exact(self.call) else asked

    @property
    def is_on_one_memory(self) -> bool:
        """Whether the executor folds each element once: in one memory, a tree would only move it more often."""
        return EXECUTORS[self.executor.name].runs_in_one_pass(self.call.devices)

    @property
    def key(self) -> Hashable:
        """The key of the plan in the cache."""
        how = (self.executor.name, self.accumulate, self.policy, self.is_weighted, self.notes)
        return (self.collective, self.work, self.paths, self.call.frameworks, *how)


def summarise(entries: Sequence[Entry], accumulate: str = "wide", own_devices: tuple[str, ...] = ()) -> CallSummary:
    """Return the executors' view of a call; ``own_devices``: the devices that its ops object names."""
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

    Values in one memory are folded in one pass, without a tree. Elsewhere, values of one framework that return to the
    devices they lie on are packed together, per list of devices, and the router sends the packs. Each other value is
    reduced on the router's root of its destinations.
    """
    builder = PlanBuilder(request.work)
    executor = request.executor
    for note in request.notes:  # what a user should know: a fallback, what is slow
        LOG.warning(note)
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
        accumulate=request.accumulate,
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
    """Return whether no partial fold may travel: it would lose bits that the fold needs."""
    is_exact = request.accumulate == "exact" and dtype not in INTEGERS
    return is_exact or request.is_weighted or dtype in WIDE_INTEGERS


def read_topology(value: object) -> Topology | None:
    """Return the machine that a ``topology=`` argument names, None for None.

    Raises:
        ArgumentError: It is neither a ``Topology``, nor a known name, nor a file.
        TopologyError: No machine has this name.
        ParseError: The file does not hold a topology.

    """
    if value is None:
        return None
    from treefold.topology import for_ops  # noqa: PLC0415 - callers that name no machine do not load the wing

    return for_ops.read_topology(value)


class MachineTrees:
    """The trees of one machine for any of its devices, found once per set of devices. Safe to use from many threads."""

    def __init__(self, topology: Topology, num_packs: int | str) -> None:
        """Remember the machine; ``num_packs`` ≥ 1: that many trees of equal share, else the quickest for the size."""
        from treefold.topology.for_ops import MethodsBySize  # noqa: PLC0415 - as above

        self._topology = topology
        self._methods = MethodsBySize(topology, num_packs)

    def check_devices(self, devices: Sequence[str]) -> None:
        """Refuse devices that the machine does not have or does not connect.

        Raises:
            TopologyError: Its sentence names them.

        """
        self._topology.restricted(tuple(dict.fromkeys(devices)))

    def router(self, policy: PackingPolicy, root: Callable[[Sequence[str]], str]) -> Router:
        """Return the router of one call: one pack per tree, or the policy's packs, in turn, over the trees."""
        methods: list[tuple[Method, int]] = []  # the method and share of each pack that ``packs`` has made

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
    """Return the index of the share that carries pack ``number``, for packs that were not cut to shares.

    Over any run of packs, shares are met in proportion.
    """
    ends = list(itertools.accumulate(shares))
    return bisect.bisect_right(ends, (number * _GOLDEN) % 1 * ends[-1])
