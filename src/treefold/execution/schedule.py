"""From a proved plan to operations on streams: chunks in flight together, each waiting only for what it needs.

A step of a plan is a barrier on paper only. Here every action is cut into chunks, every chunk becomes an operation on a
stream, and an operation waits for the operations that it depends on, by the ranges they read and write: nothing is read
before it is written, nothing is overwritten before its last read. Streams run in order; across streams there are
events. No array and no framework is known here.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from treefold.dtypes import itemsize
from treefold.execution.accesses import Accesses
from treefold.plan import Plan
from treefold.plan.actions import cut, fills
from treefold.plan.ir import Action, Buffer, Combine, Concat, Copy, Range, Role

#: No action is cut into more chunks than this: each costs a launch and an event.
_MOST_CHUNKS = 256
#: While one chunk leaves a staging buffer, the next one enters the other half.
_STAGING_SLOTS = 2


@dataclass(frozen=True, slots=True, order=True)
class Stream:
    """A queue of operations that run in order: copies from ``device`` to ``peer``, or, without one, arithmetic."""

    device: str
    peer: str = ""


@dataclass(frozen=True, slots=True)
class Operation:
    """One chunk of an action, on its stream.

    ``wave``: when it could run if all took equally long. ``waits``: positions, in the schedule, of operations of other
    streams that must be done before; one per stream at most, and only where no earlier operation of this stream waited
    for it or for a later one.
    """

    action: Action
    stream: Stream
    wave: int
    waits: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Schedule:
    """Operations in an order in which each comes after all that it depends on.

    ``buffers``: the plan's, then the staging buffers, which lie in host memory and take what may not go directly from
    one device to another. ``signals``: positions of the operations that another one waits for.
    """

    plan: Plan
    buffers: tuple[Buffer, ...]
    operations: tuple[Operation, ...]
    signals: frozenset[int]

    @property
    def streams(self) -> tuple[Stream, ...]:
        """The streams in order of first use."""
        return tuple(dict.fromkeys(operation.stream for operation in self.operations))

    @property
    def staging(self) -> range:
        """The indices of the staging buffers."""
        return range(len(self.plan.buffers), len(self.buffers))


class Driver(Protocol):
    """A runtime with streams. Calls come from one thread and need not wait for what they start."""

    def wait(self, stream: Stream, event: Any) -> None:
        """Let everything that ``stream`` is given from now on wait for an event of another stream."""

    def perform(self, operation: Operation) -> None:
        """Give an operation to its stream."""

    def signal(self, stream: Stream) -> Any:
        """Return an event that comes when ``stream`` has done all that it was given so far."""


def make_schedule(
    plan: Plan, *, chunk_bytes: int, is_direct: Callable[[str, str], bool] = lambda _source, _target: True
) -> Schedule:
    """Cut a plan into operations.

    ``chunk_bytes``: bytes of a chunk in the leaf's dtype. ``is_direct``: whether a copy may go from one device straight
    to another; else it goes through the host.
    """
    chunks = _Chunks(plan, chunk_bytes, is_direct)
    drafts = [draft for step in range(len(plan.steps)) for draft in chunks.of_step(step)]
    buffers = tuple(chunks.buffers)
    needs = _needs(drafts, len(buffers))
    order = _wave_order(drafts, needs)
    operations, signals = _with_waits(drafts, needs, order)
    return Schedule(plan, buffers, operations, signals)


def issue(schedule: Schedule, driver: Driver) -> None:
    """Give every operation to its stream, and every wait before it."""
    events: dict[int, Any] = {}
    for position, operation in enumerate(schedule.operations):
        for other in operation.waits:
            driver.wait(operation.stream, events[other])
        driver.perform(operation)
        if position in schedule.signals:
            events[position] = driver.signal(operation.stream)


class _Chunks:
    """Cuts actions, and lets copies that may not go directly go through staging buffers."""

    def __init__(self, plan: Plan, chunk_bytes: int, is_direct: Callable[[str, str], bool]) -> None:
        self.plan, self.chunk_bytes, self.is_direct = plan, chunk_bytes, is_direct
        self.buffers = list(plan.buffers)
        self._staging: dict[tuple[str, str, str, Role], int] = {}
        self._turns: dict[int, int] = defaultdict(int)

    def of_step(self, step: int) -> Iterator[Operation]:
        """Yield the operations of a step in an order that a single thread could run them in."""
        for action in self.plan.steps[step].actions:
            for chunk, piece in enumerate(self._cut(action)):
                yield from self._staged(piece, step + chunk)

    def _cut(self, action: Action) -> Iterator[Action]:
        if self.plan.accumulate == "callback" and isinstance(action, Combine):
            yield action  # the function takes whole arrays
            return
        # A chunk of a concatenation lies in one of its sources: it is an operation's only wait.
        borders = fills(action) if isinstance(action, Concat) else [(action.target, action.target)]
        for _, filled in borders:
            at = filled.start - action.target.start
            for begin, end in self._bounds(filled):
                yield cut(action, at + begin, at + end)

    def _bounds(self, whole: Range) -> Iterator[tuple[int, int]]:
        dtype = self.plan.leaves[self.buffers[whole.buffer].leaf].dtype
        size = max(1, self.chunk_bytes // itemsize(dtype), -(-whole.length // _MOST_CHUNKS))
        for begin in range(0, whole.length, size):
            yield begin, min(begin + size, whole.length)

    def _staged(self, action: Action, wave: int) -> Iterator[Operation]:
        target = self.buffers[action.target.buffer].device
        if not isinstance(action, Copy) or self.buffers[action.source.buffer].device == target:
            yield Operation(action, Stream(target), wave)
            return
        source = self.buffers[action.source.buffer].device
        if self.is_direct(source, target):
            yield Operation(action, Stream(source, target), wave)
            return
        slot = self._slot(action, source, target)
        yield Operation(replace(action, target=slot), Stream(source, "host"), wave)
        yield Operation(replace(action, source=slot), Stream("host", target), wave + 1)

    def _slot(self, action: Copy, source: str, target: str) -> Range:
        """Return the half of a staging buffer that was used longest ago, of the chunk's length."""
        origin = self.buffers[action.source.buffer]
        # Chunks of one dtype and kind share a buffer: what it holds decides how long its elements are.
        dtype = self.plan.leaves[origin.leaf].dtype
        role = Role.SCRATCH if origin.role is Role.INPUT else Role.RESULT if origin.role is Role.OUTPUT else origin.role
        key = (source, target, dtype, role)
        length = action.source.length
        index = self._staging.get(key)
        if index is None or self.buffers[index].length < _STAGING_SLOTS * length:
            index = self._staging[key] = len(self.buffers)
            name = f"staging{index}"
            self.buffers.append(Buffer(name, "cpu:0", _STAGING_SLOTS * length, role, origin.leaf))
        # Whoever writes into this half waits for the copy that reads what it holds: ``_needs`` goes by the ranges.
        turn = self._turns[index]
        self._turns[index] = (turn + 1) % _STAGING_SLOTS
        start = turn * (self.buffers[index].length // _STAGING_SLOTS)
        return Range(index, start, start + length)


def _needs(drafts: Sequence[Operation], num_buffers: int) -> list[frozenset[int]]:
    """Return, for each operation, the earlier ones that must be done before it may start."""
    accesses = [Accesses() for _ in range(num_buffers)]
    needs = []
    for position, draft in enumerate(drafts):
        found: set[int] = set()
        for source in draft.action.sources:
            found |= accesses[source.buffer].read(source.start, source.stop, position)
        target = draft.action.target
        found |= accesses[target.buffer].write(target.start, target.stop, position)
        needs.append(frozenset(found - {position}))
    return needs


def _wave_order(drafts: Sequence[Operation], needs: Sequence[frozenset[int]]) -> list[int]:
    """Order operations by wave, so that chunk 0 of a later step is issued before chunk 9 of an earlier one.

    Streams run what they are given in the order in which it is issued: step by step would be no pipeline.
    """
    followers: dict[int, list[int]] = defaultdict(list)
    open_needs = [len(need) for need in needs]
    for position, need in enumerate(needs):
        for other in need:
            followers[other].append(position)
    ready = [(draft.wave, position) for position, draft in enumerate(drafts) if not open_needs[position]]
    heapq.heapify(ready)
    order = []
    while ready:
        _, position = heapq.heappop(ready)
        order.append(position)
        for follower in followers[position]:
            open_needs[follower] -= 1
            if not open_needs[follower]:
                heapq.heappush(ready, (drafts[follower].wave, follower))
    return order


def _with_waits(
    drafts: Sequence[Operation], needs: Sequence[frozenset[int]], order: Sequence[int]
) -> tuple[tuple[Operation, ...], frozenset[int]]:
    issued_at = {position: issued for issued, position in enumerate(order)}
    waited: dict[tuple[Stream, Stream], int] = {}
    operations, signals = [], set()
    for position in order:
        own = drafts[position].stream
        last: dict[Stream, int] = {}
        for need in needs[position]:
            other = drafts[need].stream
            if other != own:
                last[other] = max(last.get(other, -1), issued_at[need])
        waits = sorted(issued for other, issued in last.items() if issued > waited.get((own, other), -1))
        waited |= {(own, other): issued for other, issued in last.items() if issued in waits}
        signals |= set(waits)
        operations.append(replace(drafts[position], waits=tuple(waits)))
    return tuple(operations), frozenset(signals)
