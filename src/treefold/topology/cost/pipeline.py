"""The pipeline of a simulation: lanes carry chunks one after another and share links fairly with other lanes.

A lane pays its latency before each chunk, as a started copy does, and uses no bandwidth meanwhile. Then the chunk flows
at the lane's max-min fair rate: no rate can grow without reducing one that is not higher (Bertsekas and Gallager, *Data
Networks*, section 6.5.2). Rates are in chunks per second, not bytes: a link serves chunks in turn, so a chunk that is
twice as large gets twice the bandwidth. Packs of different sizes therefore keep pace with each other, as optimal
tree packings assume. If all chunks have one size, there is no difference.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from treefold.compiled import HAS_NATIVE
from treefold.dtypes import itemsize
from treefold.errors import InstallationError
from treefold.fold import Fold
from treefold.keyed import grouped
from treefold.plan import Movement
from treefold.plan.actions import dtype_in
from treefold.plan.ir import Action, Combine
from treefold.reduce_op import ReduceOp
from treefold.topology.cost.routes import Ends, Route
from treefold.topology.graph import Topology

if HAS_NATIVE:  # an installation without the native core reduces, but does not simulate
    from treefold._native import run_pipeline

Times = npt.NDArray[np.float64]  # starts and stops, by lane and chunk
Indices = npt.NDArray[np.int32]
Cuts = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int32]
_SUM = Fold(ReduceOp.SUM)  # determines the dtype of partial folds


class Lanes:
    """The lanes as flat arrays: one for every route of every task that travels, and one for every other task.

    Lane l carries chunks of ``task[l]`` along the nodes ``routes[l]``. ``nbytes[l]`` counts all its chunks, at the
    movement's own size, and ``alpha_s[l]`` is its latency before each chunk. The lane shares the resources
    ``resources[resource_start[l]:resource_start[l + 1]]``. Resources are numbered: first the links, with their
    ``link_capacities`` in bytes per second, then the devices. The needs of task t are
    ``needs[need_start[t]:need_start[t + 1]]``.
    """

    def __init__(
        self, topology: Topology, tasks: Sequence[Task], routes: Mapping[Ends, Sequence[Route]], *, counts_folds: bool
    ) -> None:
        """Fill the arrays. ``counts_folds``: tasks that do not travel share their device's rate, else they are free."""
        links = {ends: row for row, ends in enumerate(topology.bytes_per_s)}
        devices = {name: len(links) + row for row, name in enumerate(topology.devices)} if counts_folds else {}
        used = {pair: [[links[ends] for ends in route.links] for route in found] for pair, found in routes.items()}
        rows: list[tuple[int, float, float, Sequence[int], tuple[str, ...]]] = []
        for number, task in enumerate(tasks):
            if task.travels:
                pair = task.source, task.target
                rows += [
                    (number, task.nbytes * route.share, route.alpha_s, shared, route.nodes)
                    for route, shared in zip(routes[pair], used[pair], strict=True)
                ]
            else:
                own = [devices[task.source]] if counts_folds else []
                rows.append((number, task.nbytes, 0.0, own, (task.source,)))
        self.num_devices = len(topology.devices)
        self.link_capacities = list(topology.bytes_per_s.values())
        self.task = np.array([row[0] for row in rows], np.int32)
        self.nbytes = np.array([row[1] for row in rows], np.float64)
        self.alpha_s = np.array([row[2] for row in rows], np.float64)
        self.resource_start = _starts([len(row[3]) for row in rows])
        self.resources = np.array([resource for row in rows for resource in row[3]], np.int32)
        self.routes = [row[4] for row in rows]
        self.needs = [need for task in tasks for need in task.needs]
        self.need_start = _starts([len(task.needs) for task in tasks])
        self.need_task = np.array([need.task for need in self.needs], np.int32)
        # Most needs cut their elements alike and wait chunk for chunk; only the others are counted one by one.
        self._unlike = [row for row, need in enumerate(self.needs) if need.touches]

    def need_counts(self, num_chunks: int) -> Indices:
        """Return, by need and chunk, how many chunks of the needed task must be done before the chunk starts."""
        # Chunk i waits for chunk i, so for i + 1 chunks that are done.
        counts = np.tile(np.arange(1, num_chunks + 1, dtype=np.int32), (len(self.needs), 1))
        for row in self._unlike:
            counts[row] = self.needs[row].counts(num_chunks)
        return counts


class Pipeline:
    """The result of running lanes to their end.

    ``starts[l][c]`` and ``stops[l][c]``: the seconds of chunk c on lane l; ``now``: when the last one stopped.
    """

    def __init__(self, lanes: Lanes, num_chunks: int, chunk: float, device_bytes_per_s: float) -> None:
        """Run ``num_chunks`` chunks per lane, each of them the part ``chunk`` of the lane's bytes."""
        if not HAS_NATIVE:
            raise InstallationError(
                "Simulating a plan needs treefold._native, which is not installed. "
                "Install treefold with a C++17 compiler at hand, or from a wheel."
            )
        self.lanes, self.num_chunks = lanes, num_chunks
        self.need_counts = lanes.need_counts(num_chunks)
        # NaN: a chunk that the run never reaches is noticed, and does not pass for a time.
        self._times = np.full((2, len(lanes.routes), num_chunks), np.nan)
        run_pipeline(
            lanes.task,
            lanes.nbytes * chunk,
            lanes.alpha_s,
            lanes.resource_start,
            lanes.resources,
            lanes.need_start,
            lanes.need_task,
            self.need_counts,
            np.array(lanes.link_capacities + [device_bytes_per_s] * lanes.num_devices, np.float64),
            self._times[0],
            self._times[1],
        )
        self.now = float(self._times[1, :, -1].max(initial=0.0))

    # Timelines read single times, for which lists are faster than arrays. A price needs neither list.
    @cached_property
    def starts(self) -> list[list[float]]:
        """The second at which each chunk started, by lane and chunk."""
        found: list[list[float]] = self._times[0].tolist()
        return found

    @cached_property
    def stops(self) -> list[list[float]]:
        """The second at which each chunk stopped, by lane and chunk."""
        found: list[list[float]] = self._times[1].tolist()
        return found

    def critical_path(self) -> list[tuple[int, int]]:
        """Return a chain of (lane, chunk) up to the last chunk to end; each of them waited for the one before."""
        lanes, counts = self.lanes, self.need_counts.tolist()
        lanes_of: dict[int, list[int]] = grouped((task, number) for number, task in enumerate(lanes.task.tolist()))

        def last(found: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
            return max(found, key=lambda at: self.stops[at[0]][at[1]], default=None)

        at = last([(lane, self.num_chunks - 1) for lane in range(len(lanes.routes))])
        path = []
        while at is not None:
            path.append(at)
            lane, chunk = at
            # A chunk starts as soon as the last thing that it waits for is done, so the latest of these is the one on
            # the path.
            before = [(lane, chunk - 1)] if chunk else []
            task = lanes.task[lane]
            for row in range(lanes.need_start[task], lanes.need_start[task + 1]):
                if counts[row][chunk]:
                    before += [(other, counts[row][chunk] - 1) for other in lanes_of[lanes.needs[row].task]]
            at = last(before)
        return path[::-1]


def _starts(lengths: Sequence[int]) -> Indices:
    return np.array([0, *itertools.accumulate(lengths)], np.int32)


class Task(NamedTuple):
    """An action on ``source`` and ``target``, which are one device if it crosses no link.

    Attributes:
        nbytes: The bytes that it moves, or reads to fold.
        length: The elements that it writes, in chunks.

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

    Attributes:
        touches: The accesses in question. Empty if both tasks cut the same elements alike, so that chunk i waits for
            chunk i.

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
        # Borders that are equal in theory differ in their last digits, because they come from different divisions.
        # Without the margin a chunk would wait for one more chunk of the other task, and the pipeline would lose time.
        near = 1e-9 * max(float(cuts[-1]), 1.0)
        # The number of the other task's first border at or behind the end of this chunk's access. It is also the
        # number of its chunks that must be done.
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
            # A task waits for the writers of the elements that it reads, and for earlier readers and writers of those
            # that it overwrites.
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
    """Find the earlier tasks that access the same elements, and note both accesses."""
    start, stop, _, _, _, step = mine
    for other in others:
        # Actions of one step never touch elements that others of it write, which the movement's proof has checked.
        if other.start < stop and start < other.stop and other.step < step:
            found.setdefault(other.task, []).append(_Touch(mine, other))


def _need(item: tuple[int, list[_Touch]]) -> Need:
    task, touches = item
    return Need(task, () if all(touch.is_alike for touch in touches) else tuple(touches))
