"""A movement as tasks that work chunk by chunk: each may take its next chunk when what it reads there is written.

Steps say what may run at once; the pipeline needs more: chunk 3 can travel down while chunk 5 travels up. What a chunk
waits for follows from the ranges. A task's chunks are done in order, so one number says how far it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from treefold.dtypes import itemsize
from treefold.fold import Fold
from treefold.plan import Movement
from treefold.plan.actions import dtype_in, fills
from treefold.plan.ir import Action, Range
from treefold.reduce_op import ReduceOp

Cuts = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int32]

_SUM = Fold(ReduceOp.SUM)  # decides how wide partial folds travel


@dataclass(frozen=True, slots=True)
class Task:
    """An action of step ``step``, from ``source`` to ``target`` (devices; one where nothing travels).

    ``nbytes``: what it moves, or reads to fold. ``length``: the elements that it writes, which its chunks divide.
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
        """Whether it crosses links."""
        return self.source != self.target


@dataclass(frozen=True, slots=True)
class Need:
    """A task that another waits for, chunk by chunk, because of what both ``touch``.

    Nothing of it is kept where both touch the same and cut it alike: chunk i waits for chunk i.
    """

    task: int
    touches: tuple[_Touch, ...] = ()

    def counts(self, num_chunks: int, *, whole: bool = False) -> Counts:
        """Return for every chunk how many of the other task's chunks must be done."""
        found = np.arange(1, num_chunks + 1, dtype=np.int32)
        if self.touches:
            cut = whole_cuts if whole else fractional_cuts
            np.max([touch.counts(num_chunks, cut) for touch in self.touches], axis=0, out=found)
        return found


@dataclass(frozen=True, slots=True)
class _Access:
    """After q chunks a task is done with positions below ``base + cuts[q]``, of those from ``start`` to ``stop``."""

    task: int
    step: int
    start: int
    stop: int
    base: int
    length: int


@dataclass(frozen=True, slots=True)
class _Touch:
    """What two tasks touch of a buffer."""

    mine: _Access
    other: _Access

    @property
    def is_alike(self) -> bool:
        """Whether both touch the same and cut it alike."""
        mine, other = self.mine, self.other
        return (mine.start, mine.stop, mine.base, mine.length) == (other.start, other.stop, other.base, other.length)

    def counts(self, num_chunks: int, cut: Callable[[int, int], Cuts]) -> Counts:
        """Return for every chunk how many of the other's chunks cover what both touch of it."""
        mine, other = self.mine, self.other
        start, stop = max(mine.start, other.start), min(mine.stop, other.stop)
        cuts = cut(mine.length, num_chunks)
        from_, to = mine.base + cuts[:-1], np.minimum(mine.base + cuts[1:], stop)
        near = 1e-9 * max(float(cuts[-1]), 1.0)
        needed = np.searchsorted(cut(other.length, num_chunks), to - other.base - near)
        touches = np.maximum(from_, start) < to - near
        # Chunks are done in order, so a chunk also waits for whatever an earlier one waits for.
        found: Counts = np.maximum.accumulate(np.where(touches, needed, 0)).astype(np.int32)
        return found


def fractional_cuts(length: int, num_chunks: int) -> Cuts:
    """Return the borders of chunks of one size, as if elements could be cut."""
    return np.linspace(0.0, float(length), num_chunks + 1)


def whole_cuts(length: int, num_chunks: int) -> Cuts:
    """Return the borders of chunks of whole elements, whose sizes differ by one at most."""
    cuts: Cuts = np.floor(np.arange(num_chunks + 1) * (length / num_chunks) + 1e-9)
    return cuts


def make_tasks(movement: Movement) -> tuple[Task, ...]:
    """Return every action of a movement as a task, and say what each waits for; earlier steps come first."""
    reads: list[list[_Access]] = [[] for _ in movement.buffers]
    writes: list[list[_Access]] = [[] for _ in movement.buffers]
    tasks: list[Task] = []
    for step, actions in enumerate((step.actions for step in movement.steps), start=1):
        for action in actions:
            number, target, length = len(tasks), action.target, action.target.length
            sources = [
                (
                    part.buffer,
                    _Access(number, step, part.start, part.stop, part.start - filled.start + target.start, length),
                )
                for part, filled in fills(action)
            ]
            result = _Access(number, step, target.start, target.stop, target.start, length)
            # What is written must not be needed any more: readers and writers before it count as well.
            before = [(mine, other) for buffer, mine in sources for other in writes[buffer]]
            before += [(result, other) for other in (*reads[target.buffer], *writes[target.buffer])]
            tasks.append(_task(movement, action, step, _needs(before)))
            for buffer, access in sources:
                reads[buffer].append(access)
            writes[target.buffer].append(result)
    return tuple(tasks)


def _task(movement: Movement, action: Action, step: int, needs: tuple[Need, ...]) -> Task:
    target = movement.buffers[action.target.buffer]
    source = movement.buffers[action.sources[0].buffer]
    nbytes = sum(_nbytes(movement, part) for part in action.sources)
    return Task(action, step, source.device, target.device, float(nbytes), action.target.length, needs)


def _nbytes(movement: Movement, part: Range) -> int:
    buffer = movement.buffers[part.buffer]
    return part.length * itemsize(dtype_in(buffer.role, movement.leaves[buffer.leaf], _SUM))


def _needs(pairs: Sequence[tuple[_Access, _Access]]) -> tuple[Need, ...]:
    found: dict[int, list[_Touch]] = {}
    for mine, other in pairs:
        if other.step < mine.step and max(mine.start, other.start) < min(mine.stop, other.stop):
            found.setdefault(other.task, []).append(_Touch(mine, other))
    return tuple(
        Need(task, () if all(touch.is_alike for touch in touches) else tuple(touches))
        for task, touches in found.items()
    )
