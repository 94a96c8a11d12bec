"""A plan's actions as MSCCL steps that are not yet placed in blocks.

Every copy between devices becomes a step that sends and one that receives. A combination becomes receives that reduce
as they arrive, the earliest first, so that the last of them can often send its sum on without storing it. Where devices
exchange values, reducing in place would overwrite what has yet to be sent: then arrivals are stored first.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from treefold.errors import ExportError
from treefold.export.msccl_algorithm import MAX_CHUNKS, MAX_COUNT, Place
from treefold.plan import Plan
from treefold.plan.ir import Action, Combine, Copy, Goal, Range, Role

NOWHERE = Place("i", -1)


@dataclass(slots=True)
class Work:
    """A step to be: on which rank, to and from which peer (-1: none), for which pack, on its way up or down."""

    rank: int
    type: str
    source: Place
    target: Place
    count: int
    pack: int
    is_down: bool
    send: int = -1
    recv: int = -1
    feeds: Work | None = None  # the step that receives what this one sends

    @property
    def lane(self) -> tuple[int, bool]:
        """What must not share a channel with others if it can be helped."""
        return self.pack, self.is_down


@dataclass(frozen=True, slots=True)
class Lowered:
    """All steps in an order that a single thread could run, and how many chunks each buffer has."""

    works: list[Work]
    chunks: int
    scratch_chunks: list[int]


def lower(plan: Plan, *, is_stored: bool = False) -> Lowered:
    """Return the steps of a plan; ``is_stored``: what arrives is stored, and reduced when all of it is there.

    Raises:
        ExportError: the plan is no all-reduce of one array with one replica per device, or needs too many chunks.

    """
    return _Lowering(plan, is_stored=is_stored).run()


class _Lowering:
    def __init__(self, plan: Plan, *, is_stored: bool) -> None:
        if plan.collective != "all_reduce" or len(plan.leaves) != 1 or plan.leaves[0].goal is not Goal.FOLD:
            raise ExportError.collective(plan.collective, len(plan.leaves))
        self.plan = plan
        self.ranks = _ranks(plan)
        self.unit = _unit(plan)
        self.chunks = max(buffer.length for buffer in plan.buffers if buffer.role is Role.INPUT) // self.unit
        if not 1 <= self.chunks <= MAX_CHUNKS:
            raise ExportError.chunks(self.chunks, MAX_CHUNKS)
        self.scratch = [0] * len(self.ranks)
        self.places = [self._allocated(index) for index in range(len(plan.buffers))]
        self.readers = _readers(plan)
        self.arrivals: dict[Range, Copy] = {}  # copies whose receiving end waits for the combination that reads it
        self.is_stored = is_stored
        self.works: list[tuple[int, Work]] = []
        self.sent_in: dict[Range, int] = {}
        self.step = 0

    def run(self) -> Lowered:
        for step in self.plan.steps:
            for action in step.actions:
                self._lower(action)
            self.step += 2
        # Actions of a step read before any of them writes, and input and output may be one memory.
        return Lowered([work for _, work in sorted(self.works, key=lambda item: item[0])], self.chunks, self.scratch)

    def _add(self, work: Work, at: int | None = None) -> None:
        self.works.append((self.step + 1 if at is None else at, work))

    def _lower(self, action: Action) -> None:
        if isinstance(action, Copy):
            if self._rank(action.source) == self._rank(action.target):
                self._move([action.source], action.target, action.pack)
            elif self._is_combined_next(action):
                self.arrivals[action.target], self.sent_in[action.target] = action, self.step
            else:
                self._transfer(action, "r", NOWHERE, action.target)
        elif isinstance(action, Combine):
            self._combine(action)
        else:
            self._move(action.sources, action.target, action.pack)

    def _combine(self, action: Combine) -> None:
        """Start from what is here, then add what arrives, in the order in which it was sent."""
        here = [source for source in action.sources if source not in self.arrivals]
        # The device's own values first: in place they are where the total will be.
        here.sort(key=lambda source: self.plan.buffers[source.buffer].role is not Role.INPUT)
        sent = [copy for target, copy in self.arrivals.items() if target in action.sources]
        for copy in sent:
            del self.arrivals[copy.target]
        total: Range | None = here[0] if here else None
        if len(here) > 1 or not sent:
            self._move(here[:1], action.target, action.pack)
            total = action.target
            for source in here[1:]:
                self._local("re", source, action.target, action.pack)
        for copy in sent:
            kind = "r" if total is None else "rrc"
            self._transfer(copy, kind, NOWHERE if total is None else total, action.target)
            total = action.target

    def _transfer(self, copy: Copy, kind: str, source: Range | Place, target: Range) -> None:
        sender, receiver = self._rank(copy.source), self._rank(copy.target)
        is_down = self.plan.buffers[copy.target.buffer].role in {Role.RESULT, Role.OUTPUT}
        for offset, count in self._parts(copy.source):
            here = NOWHERE if isinstance(source, Place) else self._place(source, offset)
            there = self._place(target, offset)
            received = Work(receiver, kind, here, there, count, copy.pack, is_down, recv=sender)
            start = self._place(copy.source, offset)
            # Interpreters name the far end in a send's target; they do not use it.
            sent = Work(sender, "s", start, there, count, copy.pack, is_down, send=receiver, feeds=received)
            self._add(sent, self.sent_in.get(copy.target, self.step))
            self._add(received)

    def _move(self, sources: Sequence[Range], target: Range, pack: int) -> None:
        at = target.start
        for source in sources:
            part = Range(target.buffer, at, at + source.length)
            at += source.length
            if self._place(source, 0) != self._place(part, 0):
                self._local("cpy", source, part, pack)

    def _local(self, kind: str, source: Range, target: Range, pack: int) -> None:
        for offset, count in self._parts(source):
            places = self._place(source, offset), self._place(target, offset)
            self._add(Work(self._rank(target), kind, *places, count, pack, is_down=False))

    def _parts(self, whole: Range) -> Iterator[tuple[int, int]]:
        """Yield (offset, count) of parts that one step can take."""
        length = whole.length // self.unit
        for offset in range(0, length, MAX_COUNT):
            yield offset, min(MAX_COUNT, length - offset)

    def _is_combined_next(self, copy: Copy) -> bool:
        """Tell whether a copy's only reader is a combination of exactly its range."""
        return not self.is_stored and self.readers[copy.target.buffer] == [(copy.target, True)]

    def _rank(self, where: Range) -> int:
        return self.ranks[self.plan.buffers[where.buffer].device]

    def _allocated(self, index: int) -> Place:
        buffer = self.plan.buffers[index]
        if buffer.role in {Role.INPUT, Role.OUTPUT}:
            return Place("i" if buffer.role is Role.INPUT else "o", 0)
        rank = self.ranks[buffer.device]
        self.scratch[rank] += buffer.length // self.unit
        return Place("s", self.scratch[rank] - buffer.length // self.unit)

    def _place(self, where: Range, offset: int) -> Place:
        start = self.places[where.buffer]
        return Place(start.buffer, start.chunk + where.start // self.unit + offset)


def _ranks(plan: Plan) -> dict[str, int]:
    """Return the rank of every device: the position of its replica."""
    inputs = {buffer.device: buffer.position for buffer in plan.buffers if buffer.role is Role.INPUT}
    for device in plan.devices:
        counts = [sum(b.role is r and b.device == device for b in plan.buffers) for r in (Role.INPUT, Role.OUTPUT)]
        if counts != [1, 1]:
            raise ExportError.placement(device, *counts)
    return inputs


def _unit(plan: Plan) -> int:
    """Return the elements of the largest chunk that every range is made of."""
    unit = math.gcd(*(buffer.length for buffer in plan.buffers))
    for step in plan.steps:
        for action in step.actions:
            sources = (action.source,) if isinstance(action, Copy) else action.sources
            for where in (*sources, action.target):
                unit = math.gcd(unit, where.start, where.stop)
    return max(unit, 1)


def _readers(plan: Plan) -> dict[int, list[tuple[Range, bool]]]:
    """Return, for every buffer, the ranges that are read and whether a combination reads them."""
    found: dict[int, list[tuple[Range, bool]]] = defaultdict(list)
    for step in plan.steps:
        for action in step.actions:
            for source in (action.source,) if isinstance(action, Copy) else action.sources:
                found[source.buffer].append((source, isinstance(action, Combine)))
    return found
