"""A movement as tasks that work chunk by chunk: each may take its next chunk when what it reads there is written.

Steps say what may run at once; the pipeline needs more: chunk 3 can travel down while chunk 5 travels up. What a chunk
waits for follows from the ranges. A task's chunks are done in order, so one number says how far it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from treefold.dtypes import itemsize
from treefold.fold import Fold
from treefold.plan import Movement
from treefold.plan.ir import Action, Combine, Copy, Range, Role
from treefold.reduce_op import ReduceOp

Cuts = npt.NDArray[np.float64]

_PARTIAL = Fold(ReduceOp.SUM).partial_dtype  # what travels while a fold is not finished


@dataclass(frozen=True, slots=True)
class Task:
    """An action of step ``step``, from ``source`` to ``target`` (devices; one where nothing travels).

    ``nbytes``: what it moves, or reads to fold. ``needs``: (task, how many of its chunks must be done, by chunk).
    """

    action: Action
    step: int
    source: str
    target: str
    nbytes: float
    cuts: Cuts
    needs: tuple[tuple[int, tuple[int, ...]], ...]

    @property
    def travels(self) -> bool:
        """Whether it crosses links."""
        return self.source != self.target


@dataclass(frozen=True, slots=True)
class _Access:
    """After q chunks a task is done with positions below ``base + cuts[q]``, of those from ``start`` to ``stop``."""

    task: int
    step: int
    start: int
    stop: int
    base: int
    cuts: Cuts


def fractional_cuts(length: int, num_chunks: int) -> Cuts:
    """Return the borders of chunks of one size, as if elements could be cut."""
    return np.linspace(0.0, float(length), num_chunks + 1)


def whole_cuts(length: int, num_chunks: int) -> Cuts:
    """Return the borders of chunks of whole elements, whose sizes differ by one at most."""
    cuts: Cuts = np.floor(np.arange(num_chunks + 1) * (length / num_chunks) + 1e-9)
    return cuts


def make_tasks(movement: Movement, num_chunks: int, *, whole: bool = False) -> tuple[Task, ...]:
    """Cut every action of a movement into ``num_chunks`` chunks and say what each waits for; earlier steps come first.

    ``whole``: chunks hold whole elements, so that arrays can be cut like this; some may then be empty.
    """
    cut = whole_cuts if whole else fractional_cuts
    known: dict[int, Cuts] = {}
    reads: list[list[_Access]] = [[] for _ in movement.buffers]
    writes: list[list[_Access]] = [[] for _ in movement.buffers]
    tasks: list[Task] = []
    for step, actions in enumerate((step.actions for step in movement.steps), start=1):
        for action in actions:
            length = action.target.length
            if length not in known:
                known[length] = cut(length, num_chunks)
            cuts = known[length]
            number = len(tasks)
            sources = [
                (part.buffer, _Access(number, step, part.start, part.stop, part.start - offset, cuts))
                for part, offset in zip(action.sources, _offsets(action), strict=True)
            ]
            target = action.target
            result = _Access(number, step, target.start, target.stop, target.start, cuts)
            # What is written must not be needed any more: readers and writers before it count as well.
            before = [(mine, other) for buffer, mine in sources for other in writes[buffer]]
            before += [(result, other) for other in (*reads[target.buffer], *writes[target.buffer])]
            tasks.append(_task(movement, action, step, cuts, _needs(before)))
            for buffer, access in sources:
                reads[buffer].append(access)
            writes[target.buffer].append(result)
    return tuple(tasks)


def _task(
    movement: Movement, action: Action, step: int, cuts: Cuts, needs: tuple[tuple[int, tuple[int, ...]], ...]
) -> Task:
    target = movement.buffers[action.target.buffer]
    source = movement.buffers[action.sources[0].buffer]
    nbytes = sum(_nbytes(movement, part) for part in action.sources)
    return Task(action, step, source.device, target.device, float(nbytes), cuts, needs)


def _offsets(action: Action) -> Sequence[int]:
    """Return where in the target each source begins."""
    if isinstance(action, Copy | Combine):
        return [0] * len(action.sources)
    offsets, position = [], 0
    for source in action.sources:
        offsets.append(position)
        position += source.length
    return offsets


def _nbytes(movement: Movement, part: Range) -> int:
    buffer = movement.buffers[part.buffer]
    dtype = movement.leaves[buffer.leaf].dtype
    return part.length * itemsize(_PARTIAL(dtype) if buffer.role is Role.PARTIAL else dtype)


def _needs(pairs: Sequence[tuple[_Access, _Access]]) -> tuple[tuple[int, tuple[int, ...]], ...]:
    found: dict[int, tuple[int, ...]] = {}
    for mine, other in pairs:
        start, stop = max(mine.start, other.start), min(mine.stop, other.stop)
        if other.step >= mine.step or start >= stop:
            continue
        chunks = _chunks_needed(mine, other, start, stop)
        known = found.get(other.task)
        found[other.task] = chunks if known is None else tuple(map(max, known, chunks))
    return tuple(found.items())


def _chunks_needed(mine: _Access, other: _Access, start: int, stop: int) -> tuple[int, ...]:
    """Return for every chunk how many of the other's chunks cover what both touch of it."""
    count = len(mine.cuts) - 1
    if mine.base == other.base and mine.cuts is other.cuts and (mine.start, mine.stop) == (other.start, other.stop):
        return tuple(range(1, count + 1))
    from_, to = mine.base + mine.cuts[:-1], np.minimum(mine.base + mine.cuts[1:], stop)
    near = 1e-9 * max(float(mine.cuts[-1]), 1.0)
    needed = np.searchsorted(other.cuts, to - other.base - near)
    touches = np.maximum(from_, start) < to - near
    # Chunks are done in order, so a chunk also waits for whatever an earlier one waits for.
    return tuple(int(chunk) for chunk in np.maximum.accumulate(np.where(touches, needed, 0)))
