"""Pretended streams: they run late, in any order that a real runtime might choose, and look for races.

A missing wait shows twice. It shows as a race, found from the order of events alone. It also shows as a wrong number,
because operations are held back and run in a random order that streams and events allow.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from treefold.backends import HostArray
from treefold.backends.numpy import NumpyBackend
from treefold.execution.actions import FlatMemory, LeafActions, leaf_actions, outputs
from treefold.execution.interface import Operand, Results
from treefold.execution.schedule import DeviceStream, Operation, Schedule
from treefold.fold import Fold
from treefold.plan.actions import buffers_of_leaves
from treefold.plan.ir import Buffer, Range, Role

#: How far each stream had come, as far as another one knows.
_Clock = dict[DeviceStream, int]


@dataclass(frozen=True, slots=True)
class _Event:
    stream: DeviceStream
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
    part: Range
    writes: bool
    stream: DeviceStream
    count: int


class RaceError(AssertionError):
    """Two operations touch the same elements, one of them writes, and nothing orders them."""


class FakeStreams:
    """Runs a schedule on NumPy arrays. ``inputs``: per leaf, the contributions in replica order.

    Buffers are poisoned before they are written: an operation that reads too early reads nonsense.
    """

    def __init__(self, schedule: Schedule, inputs: Sequence[Sequence[HostArray]], fold: Fold, *, seed: int = 0) -> None:
        """Take the schedule's buffers; nothing runs yet."""
        self.schedule = schedule
        self._random = random.Random(seed)  # noqa: S311 - an order, not a secret
        self._queues: dict[DeviceStream, _Queue] = defaultdict(_Queue)
        self._accesses: dict[int, list[_Access]] = defaultdict(list)
        numpy = NumpyBackend()
        self._operands = [
            Operand(numpy, tuple(arrays), (schedule.plan.buffers[outputs[0]].length,))
            for arrays, outputs in zip(inputs, buffers_of_leaves(schedule.plan, Role.OUTPUT), strict=True)
        ]
        leaves = leaf_actions(schedule.plan, self._operands, fold)
        self._memory = FlatMemory(
            leaves, schedule.buffers, [self._array(buffer, leaves) for buffer in schedule.buffers], numpy.assign
        )

    def wait(self, stream: DeviceStream, event: _Event) -> None:
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
        for part in (*operation.action.sources, operation.action.target):
            access = _Access(operation, part, part is operation.action.target, operation.stream, queue.given)
            for other in self._accesses[part.buffer]:
                self._check(other, access, queue.clock)
            self._accesses[part.buffer].append(access)

    def signal(self, stream: DeviceStream) -> _Event:
        queue = self._queues[stream]
        return _Event(stream, queue.given, dict(queue.clock))

    def finish(self) -> Results:
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
                self._memory.perform(item.action)
                self._queues[stream].done += 1
        if any(heads[stream] != len(queue.work) for stream, queue in self._queues.items()):
            raise RaceError(heads)
        return outputs(self.schedule.plan, self._operands, lambda index: self._memory.arrays[index])

    def _can_go_on(self, stream: DeviceStream, head: int) -> bool:
        work = self._queues[stream].work
        if head == len(work):
            return False
        item = work[head]
        return isinstance(item, Operation) or self._queues[item.stream].done >= item.count

    def _check(self, before: _Access, after: _Access, clock: _Clock) -> None:
        overlap = before.part.start < after.part.stop and after.part.start < before.part.stop
        is_ordered = before.operation is after.operation or before.count <= clock.get(before.stream, 0)
        if overlap and (before.writes or after.writes) and not is_ordered:
            raise RaceError(before.operation, after.operation)

    def _array(self, buffer: Buffer, leaves: Sequence[LeafActions]) -> HostArray:
        if buffer.role is Role.INPUT:
            array: HostArray = self._operands[buffer.leaf].arrays[buffer.position]
            return array.ravel().copy()
        memory = np.empty(buffer.length, leaves[buffer.leaf].dtype(buffer.role))
        memory.view(np.uint8)[...] = 0x7F
        return memory
