"""Streams that are not there: they run late, in any order that a real runtime might choose, and look for races.

A missing wait shows twice: as a race, found from the order of events alone, and as a wrong number, because operations
are held back and run in a random order that streams and events allow.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from treefold.backends.numpy import NumpyBackend
from treefold.errors import RaceError
from treefold.execution.schedule import Operation, Schedule, Stream, sources_of
from treefold.execution.streams import Driver
from treefold.fold import Fold
from treefold.plan.ir import Combine, Concat, Goal, Range, Role
from treefold.reduce_op import ReduceOp

_HostArray = np.ndarray[Any, Any]
#: How far each stream had come, as far as another one knows.
_Clock = dict[Stream, int]


@dataclass(frozen=True, slots=True)
class _Event:
    stream: Stream
    count: int
    clock: _Clock


@dataclass(slots=True)
class _Queue:
    work: list[Operation | _Event] = field(default_factory=list)
    clock: _Clock = field(default_factory=dict)
    given: int = 0
    done: int = 0


@dataclass(frozen=True, slots=True)
class _Access:
    operation: Operation
    place: Range
    writes: bool
    stream: Stream
    count: int


class FakeStreams(Driver):
    """Runs a schedule on NumPy arrays. ``inputs``: per leaf, the contributions in replica order.

    Buffers are poisoned before they are written: an operation that reads too early reads nonsense.
    """

    def __init__(
        self, schedule: Schedule, inputs: Sequence[Sequence[_HostArray]], fold: Fold, *, seed: int = 0
    ) -> None:
        """Take the schedule's buffers; nothing runs yet."""
        self.schedule, self.fold = schedule, fold
        self._random = random.Random(seed)  # noqa: S311 - an order, not a secret
        self._queues: dict[Stream, _Queue] = defaultdict(_Queue)
        self._accesses: dict[int, list[_Access]] = defaultdict(list)
        self._numpy = NumpyBackend()
        self.memory = [self._memory(index, inputs) for index in range(len(schedule.buffers))]

    def wait(self, stream: Stream, event: _Event) -> None:
        """Note what the stream knows from now on."""
        queue = self._queues[stream]
        queue.work.append(event)
        for other, count in event.clock.items():
            queue.clock[other] = max(queue.clock.get(other, 0), count)

    def perform(self, operation: Operation) -> None:
        """Hold the operation back, and look for others that nothing orders before it.

        Raises:
            RaceError: there is one.

        """
        queue = self._queues[operation.stream]
        queue.given += 1
        queue.clock[operation.stream] = queue.given
        queue.work.append(operation)
        places = [(source, False) for source in sources_of(operation.action)] + [(operation.action.target, True)]
        for place, writes in places:
            access = _Access(operation, place, writes, operation.stream, queue.given)
            for other in self._accesses[place.buffer]:
                self._check(other, access, queue.clock)
            self._accesses[place.buffer].append(access)

    def signal(self, stream: Stream) -> _Event:
        """Return an event that knows what the stream knows."""
        queue = self._queues[stream]
        return _Event(stream, queue.given, dict(queue.clock))

    def finish(self) -> list[list[_HostArray]]:
        """Run what was held back, each time on any stream that can go on; return each leaf's outputs."""
        heads = dict.fromkeys(self._queues, 0)
        while True:
            ready = [stream for stream, head in heads.items() if self._can_go_on(stream, head)]
            if not ready:
                break
            stream = self._random.choice(ready)
            item = self._queues[stream].work[heads[stream]]
            heads[stream] += 1
            if isinstance(item, Operation):
                self._run(item)
                self._queues[stream].done += 1
        if any(heads[stream] != len(queue.work) for stream, queue in self._queues.items()):
            raise RaceError(heads)
        outputs: list[list[_HostArray]] = [[] for _ in self.schedule.plan.leaves]
        for index, buffer in enumerate(self.schedule.buffers):
            if buffer.role is Role.OUTPUT:
                outputs[buffer.leaf].append(self.memory[index])
        return outputs

    def _can_go_on(self, stream: Stream, head: int) -> bool:
        work = self._queues[stream].work
        if head == len(work):
            return False
        item = work[head]
        return isinstance(item, Operation) or self._queues[item.stream].done >= item.count

    def _check(self, before: _Access, after: _Access, clock: _Clock) -> None:
        overlap = before.place.start < after.place.stop and after.place.start < before.place.stop
        is_ordered = before.operation is after.operation or before.count <= clock.get(before.stream, 0)
        if overlap and (before.writes or after.writes) and not is_ordered:
            raise RaceError(before.operation, after.operation)

    def _memory(self, index: int, inputs: Sequence[Sequence[_HostArray]]) -> _HostArray:
        buffer = self.schedule.buffers[index]
        if buffer.role is Role.INPUT:
            return inputs[buffer.leaf][buffer.position].ravel().copy()
        memory = np.empty(buffer.length, self._dtype(index))
        memory.view(np.uint8)[...] = 0x7F
        return memory

    def _dtype(self, index: int) -> str:
        buffer = self.schedule.buffers[index]
        leaf = self.schedule.plan.leaves[buffer.leaf]
        if buffer.role is Role.PARTIAL:
            return self.fold.partial_dtype(leaf.dtype)
        is_folded = buffer.role in {Role.OUTPUT, Role.RESULT} and leaf.goal in {Goal.FOLD, Goal.ROWS}
        return self.fold.result_dtype(leaf.dtype) if is_folded else leaf.dtype

    def _run(self, operation: Operation) -> None:
        action = operation.action
        parts = [self.memory[source.buffer][source.start : source.stop] for source in sources_of(action)]
        target = self.memory[action.target.buffer][action.target.start : action.target.stop]
        leaf = self.schedule.plan.leaves[self.schedule.buffers[action.target.buffer].leaf]
        count = sum(
            buffer.role is Role.INPUT and buffer.leaf == self.schedule.buffers[action.target.buffer].leaf
            for buffer in self.schedule.buffers
        )
        if isinstance(action, Combine):
            divisor = count if action.final else None
            target[...] = self._numpy.combine(
                parts, self.fold, dtype=leaf.dtype, divisor=divisor, result=target.dtype.name
            )
        elif isinstance(action, Concat) and action.final and leaf.goal is Goal.ROWS and self.fold.op is ReduceOp.MEAN:
            target[...] = self._numpy.scale(parts[0], count, target.dtype.name)
        else:
            target[...] = parts[0]
