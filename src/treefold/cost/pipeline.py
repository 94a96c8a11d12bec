"""Lanes, and what happens when chunks move on them, one after another, sharing resources fairly with other lanes.

A lane pays its latency before each chunk, as a copy that is started does, and needs no bandwidth meanwhile. Then the
chunk flows at the lane's max-min fair rate: no rate can grow without taking from one that is not higher (Bertsekas and
Gallager, *Data Networks*, section 6.5.2). Rates are chunks per second, not bytes: a link serves chunks in turn, so one
that is twice as large gets twice the bandwidth. Where all chunks are of one size there is no difference; where packs
are not, they keep pace with each other, which the optimal packings rely on.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from treefold.compiled import HAS_NATIVE
from treefold.cost.routes import Ends, Route
from treefold.cost.tasks import Task
from treefold.errors import InstallationError
from treefold.topology import Topology

if HAS_NATIVE:  # a pure-Python installation reduces, but does not simulate
    from treefold._native import run_pipeline

Times = npt.NDArray[np.float64]  # starts and stops, by lane and chunk
Indices = npt.NDArray[np.int32]


class Lanes:
    """A lane for every route of every task that travels, and one for every other task, in arrays for the clock.

    Of lane l: ``task[l]``; ``nbytes[l]``, of all its chunks, at the movement's own size; ``alpha_s[l]``, before each
    chunk; ``routes[l]``, the nodes. The links that it shares are ``resources`` from ``resource_start[l]`` on, whose
    capacities are ``link_capacities``, in bytes per second, the devices' behind them. The needs of task t stand from
    ``need_start[t]`` on.
    """

    def __init__(
        self, topology: Topology, tasks: Sequence[Task], routes: Mapping[Ends, Sequence[Route]], *, counts_folds: bool
    ) -> None:
        """Lay them out. ``counts_folds``: what does not travel shares its device's rate instead of being free."""
        links = {ends: row for row, ends in enumerate(topology.capacities)}
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
        self.link_capacities = [float(width) for width in topology.capacities.values()]
        self.task = np.array([row[0] for row in rows], np.int32)
        self.nbytes = np.array([row[1] for row in rows], np.float64)
        self.alpha_s = np.array([row[2] for row in rows], np.float64)
        self.resource_start = _starts([len(row[3]) for row in rows])
        self.resources = np.array([resource for row in rows for resource in row[3]], np.int32)
        self.routes = [row[4] for row in rows]
        self.needs = [need for task in tasks for need in task.needs]
        self.need_start = _starts([len(task.needs) for task in tasks])
        self.need_task = np.array([need.task for need in self.needs], np.int32)
        self._unlike = [row for row, need in enumerate(self.needs) if need.touches]

    def need_counts(self, num_chunks: int) -> Indices:
        """Return how many chunks of what it needs each chunk waits for, by need and chunk."""
        counts = np.tile(np.arange(1, num_chunks + 1, dtype=np.int32), (len(self.needs), 1))
        for row in self._unlike:
            counts[row] = self.needs[row].counts(num_chunks)
        return counts


class Pipeline:
    """Lanes run to their end.

    ``starts[l][c]`` and ``stops[l][c]``: the seconds of chunk c on lane l; ``now``: when the last one stopped.
    """

    def __init__(self, lanes: Lanes, num_chunks: int, chunk: float, device_bytes_per_s: float) -> None:
        """Run them: ``num_chunks`` chunks, each the part ``chunk`` of the lane's bytes."""
        if not HAS_NATIVE:
            raise InstallationError.no_clock()
        self.lanes, self.num_chunks = lanes, num_chunks
        self.need_counts = lanes.need_counts(num_chunks)
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

    # Lists, which are slow to make and quick to read, are made for timelines; a price has no need of them.
    @cached_property
    def starts(self) -> list[list[float]]:
        """When each chunk started."""
        found: list[list[float]] = self._times[0].tolist()
        return found

    @cached_property
    def stops(self) -> list[list[float]]:
        """When each chunk stopped."""
        found: list[list[float]] = self._times[1].tolist()
        return found

    def critical_path(self) -> list[tuple[int, int]]:
        """Return (lane, chunk), from the first to the last to end: each waited for the one before."""
        lanes, counts = self.lanes, self.need_counts.tolist()
        lanes_of: dict[int, list[int]] = {}
        for number, task in enumerate(lanes.task.tolist()):
            lanes_of.setdefault(task, []).append(number)

        def last(found: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
            return max(found, key=lambda at: self.stops[at[0]][at[1]], default=None)

        at = last([(lane, self.num_chunks - 1) for lane in range(len(lanes.routes))])
        path = []
        while at is not None:
            path.append(at)
            lane, chunk = at
            before = [(lane, chunk - 1)] if chunk else []
            task = lanes.task[lane]
            for row in range(lanes.need_start[task], lanes.need_start[task + 1]):
                if counts[row][chunk]:
                    before += [(other, counts[row][chunk] - 1) for other in lanes_of[lanes.needs[row].task]]
            at = last(before)
        return path[::-1]


def _starts(lengths: Sequence[int]) -> Indices:
    return np.array([0, *itertools.accumulate(lengths)], np.int32)
