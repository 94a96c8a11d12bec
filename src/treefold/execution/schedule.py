"""Turns a proved plan into operations on streams, so that chunks of several steps are in flight together.

The steps of a plan are barriers, which streams do not need. Every action is cut into chunks, and every chunk becomes an
operation on a stream. Its dependencies follow from the ranges that operations read and write: nothing is read before it
is written, and nothing is overwritten before its last read. A stream runs its operations in order; events order
operations of different streams. This module knows no array and no framework.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from treefold.dtypes import itemsize
from treefold.execution.accesses import dependencies
from treefold.keyed import grouped
from treefold.plan import Plan
from treefold.plan.actions import cut, fills
from treefold.plan.ir import Action, Buffer, Combine, Concat, Copy, Range, Role

if TYPE_CHECKING:
    from treefold.execution.cuda.several_devices import TorchStreams

#: No action is cut into more chunks than this: each costs a launch and an event.
_MOST_CHUNKS = 256
#: While one chunk leaves a staging buffer, the next one enters the other half.
_STAGING_SLOTS = 2


@dataclass(frozen=True, slots=True, order=True)
class DeviceStream:
    """A queue of operations that run in order: copies from ``device`` to ``peer``, or, without one, arithmetic."""

    device: str
    peer: str = ""


@dataclass(frozen=True, slots=True)
class Operation:
    """One chunk of an action, on its stream.

    Args:
        action: The action, cut to this chunk.
        stream: Its stream.
        wave: The turn in which it could run if all operations took equally long.
        waits: The positions in the schedule of operations on other streams that must be done before it: at most one per
            stream, and none that an earlier wait of this stream implies, because streams run in order.

    """

    action: Action
    stream: DeviceStream
    wave: int
    waits: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Schedule:
    """A plan as operations, each after all those that it depends on.

    Args:
        plan: The plan.
        buffers: The plan's buffers, then staging buffers in host memory, for copies between devices that may not copy
            directly.
        operations: The operations, in order of issue.
        signals: The positions of operations that others wait for.

    """

    plan: Plan
    buffers: tuple[Buffer, ...]
    operations: tuple[Operation, ...]
    signals: frozenset[int]

    @property
    def streams(self) -> tuple[DeviceStream, ...]:
        """The streams in order of first use."""
        return tuple(dict.fromkeys(operation.stream for operation in self.operations))

    @property
    def staging(self) -> range:
        """The indices of the staging buffers."""
        return range(len(self.plan.buffers), len(self.buffers))


def make_schedule(
    plan: Plan, *, chunk_bytes: int, is_direct: Callable[[str, str], bool] = lambda _source, _target: True
) -> Schedule:
    """Cut a plan into operations.

    Args:
        plan: The plan.
        chunk_bytes: The bytes of a chunk, in the leaf's dtype.
        is_direct: Returns whether a copy may go straight from one device to another; else it goes through the host.

    """
    chunks = _Chunks(plan, chunk_bytes, is_direct)
    drafts = [draft for step in range(len(plan.steps)) for draft in chunks.of_step(step)]
    buffers = tuple(chunks.buffers)
    needs = dependencies(((draft.action.sources, draft.action.target) for draft in drafts), len(buffers))
    order = _wave_order(drafts, needs)
    operations, signals = _with_waits(drafts, needs, order)
    return Schedule(plan, buffers, operations, signals)


def issue(schedule: Schedule, driver: TorchStreams) -> None:
    """Enqueue every operation on its stream, after its waits; no call waits for the work that it starts."""
    events: dict[int, Any] = {}
    for position, operation in enumerate(schedule.operations):
        for other in operation.waits:
            driver.wait(operation.stream, events[other])
        driver.perform(operation)
        if position in schedule.signals:
            events[position] = driver.signal(operation.stream)


class _Chunks:
    """Cuts actions into chunks, and routes copies that may not go directly through staging buffers."""

    def __init__(self, plan: Plan, chunk_bytes: int, is_direct: Callable[[str, str], bool]) -> None:
        self.plan, self.chunk_bytes, self.is_direct = plan, chunk_bytes, is_direct
        self.buffers = list(plan.buffers)
        self._staging: dict[tuple[str, str, str, Role], int] = {}
        self._turns: dict[int, int] = defaultdict(int)

    def of_step(self, step: int) -> Iterator[Operation]:
        """Yield the operations of a step in an order in which one thread could run them."""
        for action in self.plan.steps[step].actions:
            for chunk, piece in enumerate(self._cut(action)):
                # If every operation took one turn, chunk c of step s could run in turn s + c: a pipeline.
                yield from self._staged(piece, step + chunk)

    def _cut(self, action: Action) -> Iterator[Action]:
        if self.plan.accumulate == "callback" and isinstance(action, Combine):
            yield action  # the function takes whole arrays
            return
        # Cut a concatenation at the borders of its sources, so that each chunk waits for the writer of one source only.
        borders = fills(action) if isinstance(action, Concat) else [(action.target, action.target)]
        for _, filled in borders:
            at = filled.start - action.target.start
            for begin, end in self._bounds(filled):
                yield cut(action, at + begin, at + end)

    def _bounds(self, whole: Range) -> Iterator[tuple[int, int]]:
        dtype = self.plan.leaves[self.buffers[whole.buffer].leaf].dtype
        # Rounded up, so that there are never more than ``_MOST_CHUNKS``.
        size = max(1, self.chunk_bytes // itemsize(dtype), -(-whole.length // _MOST_CHUNKS))
        for begin in range(0, whole.length, size):
            yield begin, min(begin + size, whole.length)

    def _staged(self, action: Action, wave: int) -> Iterator[Operation]:
        target = self.buffers[action.target.buffer].device
        if not isinstance(action, Copy) or self.buffers[action.source.buffer].device == target:
            yield Operation(action, DeviceStream(target), wave)
            return
        source = self.buffers[action.source.buffer].device
        if self.is_direct(source, target):
            yield Operation(action, DeviceStream(source, target), wave)
            return
        slot = self._slot(action, source, target)
        yield Operation(replace(action, target=slot), DeviceStream(source, "host"), wave)
        # One stream to the host and one from it: a chunk leaves the host while the next one arrives.
        yield Operation(replace(action, source=slot), DeviceStream("host", target), wave + 1)

    def _slot(self, action: Copy, source: str, target: str) -> Range:
        """Return the half of a staging buffer that was used longest ago, as a range of the chunk's length.

        With two halves, one chunk leaves the host while the next one arrives (double buffering).
        """
        origin = self.buffers[action.source.buffer]
        # Chunks share a buffer only if they agree in dtype and role, which decide the size of its elements.
        dtype = self.plan.leaves[origin.leaf].dtype
        role = Role.SCRATCH if origin.role is Role.INPUT else Role.RESULT if origin.role is Role.OUTPUT else origin.role
        key = (source, target, dtype, role)
        length = action.source.length
        index = self._staging.get(key)
        if index is None or self.buffers[index].length < _STAGING_SLOTS * length:
            index = self._staging[key] = len(self.buffers)
            name = f"staging{index}"
            self.buffers.append(Buffer(name, "cpu:0", _STAGING_SLOTS * length, role, origin.leaf))
        # Reusing a half is safe: the next write depends on the copy that reads this half, by its range.
        turn = self._turns[index]
        self._turns[index] = (turn + 1) % _STAGING_SLOTS
        start = turn * (self.buffers[index].length // _STAGING_SLOTS)
        return Range(index, start, start + length)


def _wave_order(drafts: Sequence[Operation], needs: Sequence[Collection[int]]) -> list[int]:
    """Order operations by wave, so that chunk 0 of a later step is issued before chunk 9 of an earlier one.

    A stream runs its operations in the order of issue. Issued step by step, chunks would wait for whole steps and there
    would be no pipeline. This is Kahn's topological sort, with a heap that prefers the lowest wave.
    """
    followers = grouped((other, position) for position, need in enumerate(needs) for other in need)
    open_needs = [len(need) for need in needs]
    ready = [(draft.wave, position) for position, draft in enumerate(drafts) if not open_needs[position]]
    heapq.heapify(ready)
    order = []
    while ready:
        _, position = heapq.heappop(ready)
        order.append(position)
        for follower in followers.get(position, ()):
            open_needs[follower] -= 1
            # An operation enters the heap once, when the last of its needs has been issued.
            if not open_needs[follower]:
                heapq.heappush(ready, (drafts[follower].wave, follower))
    return order


def _with_waits(
    drafts: Sequence[Operation], needs: Sequence[Collection[int]], order: Sequence[int]
) -> tuple[tuple[Operation, ...], frozenset[int]]:
    # A wait on the latest operation of another stream covers all earlier ones there, because streams run in order. The
    # same holds for waits that this stream already has: ``waited`` keeps the latest one for each pair of streams.
    issued_at = {position: issued for issued, position in enumerate(order)}
    waited: dict[tuple[DeviceStream, DeviceStream], int] = {}
    operations, signals = [], set()
    for position in order:
        own = drafts[position].stream
        last: dict[DeviceStream, int] = {}
        for need in needs[position]:
            other = drafts[need].stream
            # Operations of one stream need no event: they run in the order of issue, which is a topological order.
            if other != own:
                last[other] = max(last.get(other, -1), issued_at[need])
        waits = sorted(issued for other, issued in last.items() if issued > waited.get((own, other), -1))
        waited |= {(own, other): issued for other, issued in last.items() if issued in waits}
        signals |= set(waits)
        operations.append(replace(drafts[position], waits=tuple(waits)))
    return tuple(operations), frozenset(signals)
