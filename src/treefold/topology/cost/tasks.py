"""A movement as tasks that work chunk by chunk: a chunk may start as soon as everything that it reads is written.

The steps of a movement are barriers, which a pipeline does not need: chunk 3 can travel down while chunk 5 travels up.
The ranges that chunks read and write give the dependencies. A task does its chunks in order, so the number of chunks
that are done describes its progress.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from treefold.dtypes import itemsize
from treefold.fold import Fold
from treefold.plan import Movement
from treefold.plan.actions import dtype_in
from treefold.plan.ir import Action, Combine
from treefold.reduce_op import ReduceOp

Cuts = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int32]

_SUM = Fold(ReduceOp.SUM)  # determines the dtype of partial folds


class Task(NamedTuple):
    """An action of step ``step`` between the devices ``source`` and ``target``, which are equal if nothing travels.

    ``nbytes``: the bytes that it moves, or reads to fold. ``length``: the elements that it writes, in chunks.
    """

    action: Action
    step: int
    source: str
    target: str
    nbytes: float
    length: int
    needs: tuple[Need, ...]

    @property
    def travels(self) -> bool:
        """True if it crosses links."""
        return self.source != self.target


class Need(NamedTuple):
    """A task that another one waits for, chunk by chunk, because both access the same elements.

    ``touches``: these accesses. It is empty if both tasks cut the same elements alike: chunk i then waits for chunk i.
    """

    task: int
    touches: tuple[_Touch, ...] = ()

    def counts(self, num_chunks: int) -> Counts:
        """Return for every chunk how many of the other task's chunks must be done."""
        found = np.arange(1, num_chunks + 1, dtype=np.int32)
        if self.touches:
            np.max([touch.counts(num_chunks) for touch in self.touches], axis=0, out=found)
        return found


class _Access(NamedTuple):
    """The positions ``start`` to ``stop`` of a buffer that a task reads or writes in chunks.

    After q chunks, the task is done with the positions below ``base + cuts[q]``.
    """

    start: int
    stop: int
    base: int
    length: int
    task: int
    step: int


class _Touch(NamedTuple):
    """The accesses of two tasks to one buffer."""

    mine: _Access
    other: _Access

    @property
    def is_alike(self) -> bool:
        """True if both tasks access the same positions and cut them alike."""
        return self.mine[:4] == self.other[:4]  # all but the task and its step

    def counts(self, num_chunks: int) -> Counts:
        """Return for every chunk how many of the other task's chunks must be done before it may start."""
        mine, other = self.mine, self.other
        start, stop = max(mine.start, other.start), min(mine.stop, other.stop)
        cuts = _cuts(mine.length, num_chunks)
        from_, to = mine.base + cuts[:-1], np.minimum(mine.base + cuts[1:], stop)
        # Borders that are equal in theory come from different divisions, and differ in their last digits: without the
        # margin a chunk would wait for the next one of the other task, and the pipeline would lose a turn.
        near = 1e-9 * max(float(cuts[-1]), 1.0)
        # The first border of the other task at or behind what this chunk reads: so many of its chunks must be done.
        needed = np.searchsorted(_cuts(other.length, num_chunks), to - other.base - near)
        touches = np.maximum(from_, start) < to - near
        # Chunks are done in order, so a chunk also waits for whatever an earlier one waits for.
        found: Counts = np.maximum.accumulate(np.where(touches, needed, 0)).astype(np.int32)
        return found


def _cuts(length: int, num_chunks: int) -> Cuts:
    """Return the borders of chunks of equal size, which may lie inside of elements."""
    return np.linspace(0.0, float(length), num_chunks + 1)


def make_tasks(movement: Movement) -> tuple[Task, ...]:
    """Return every action of a movement as a task with its needs, in the order of the steps."""
    widths, devices = _widths(movement), [buffer.device for buffer in movement.buffers]
    reads: list[list[_Access]] = [[] for _ in movement.buffers]
    writes: list[list[_Access]] = [[] for _ in movement.buffers]
    tasks: list[Task] = []
    for step, actions in enumerate((step.actions for step in movement.steps), start=1):
        for action in actions:
            number, target, length = len(tasks), action.target, action.target.length
            result = _Access(target.start, target.stop, target.start, length, number, step)
            sources, found, base, nbytes = action.sources, dict[int, list[_Touch]](), target.start, 0
            for part in sources:
                access = _Access(part.start, part.stop, part.start - base + target.start, length, number, step)
                _meet(found, access, writes[part.buffer])
                reads[part.buffer].append(access)
                nbytes += part.length * widths[part.buffer]
                # The sources of a concatenation fill its target one behind the other; any other fills all of it.
                base += 0 if isinstance(action, Combine) else part.length
            # Besides what it reads, a task waits for earlier readers and writers of what it overwrites.
            _meet(found, result, reads[target.buffer])
            _meet(found, result, writes[target.buffer])
            writes[target.buffer].append(result)
            ends = devices[sources[0].buffer], devices[target.buffer]
            tasks.append(Task(action, step, *ends, float(nbytes), length, tuple(map(_need, found.items()))))
    return tuple(tasks)


def _widths(movement: Movement) -> list[int]:
    """Return the bytes of an element of every buffer."""
    kinds = {(buffer.role, buffer.leaf) for buffer in movement.buffers}
    known = {(role, leaf): itemsize(dtype_in(role, movement.leaves[leaf], _SUM)) for role, leaf in kinds}
    return [known[buffer.role, buffer.leaf] for buffer in movement.buffers]


def _meet(found: dict[int, list[_Touch]], mine: _Access, others: Iterable[_Access]) -> None:
    """Note which earlier tasks access the same elements."""
    start, stop, _, _, _, step = mine
    for other in others:
        # Actions of one step never touch what others of it write; the proof of the movement has checked that.
        if other.start < stop and start < other.stop and other.step < step:
            found.setdefault(other.task, []).append(_Touch(mine, other))


def _need(item: tuple[int, list[_Touch]]) -> Need:
    task, touches = item
    return Need(task, () if all(touch.is_alike for touch in touches) else tuple(touches))
