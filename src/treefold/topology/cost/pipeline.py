"""The pipeline of a simulation: lanes carry chunks one after another and share links fairly with other lanes.

A lane pays its latency before each chunk, as a started copy does, and uses no bandwidth meanwhile. Then the chunk flows
at the lane's max-min fair rate: no rate can grow without reducing one that is not higher (Bertsekas and Gallager, *Data
Networks*, section 6.5.2). Rates are in chunks per second, not bytes: a link serves chunks in turn, so a chunk that is
twice as large gets twice the bandwidth. Packs of different sizes therefore keep pace with each other, as optimal
tree packings assume. If all chunks have one size, there is no difference.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from treefold.compiled import HAS_NATIVE
from treefold.errors import InstallationError
from treefold.topology.cost.routes import Ends, Route
from treefold.topology.cost.tasks import Task
from treefold.topology.graph import Topology

if HAS_NATIVE:  # an installation without the native core reduces, but does not simulate
    from treefold._native import run_pipeline

Times = npt.NDArray[np.float64]  # starts and stops, by lane and chunk
Indices = npt.NDArray[np.int32]


class Lanes:
    """The lanes as flat arrays: one for every route of every task that travels, and one for every other task.

    Lane l carries chunks of ``task[l]`` along the nodes ``routes[l]``. ``nbytes[l]`` counts all its chunks, at the
    movement's own size, and ``alpha_s[l]`` is its latency before each chunk. It shares ``resources`` from
    ``resource_start[l]`` to ``resource_start[l + 1]``: links, whose ``link_capacities`` are in bytes per second, then
    devices. The needs of task t are ``needs`` from ``need_start[t]`` to ``need_start[t + 1]``.
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
        # NaN: what the run never reaches shows, and does not pass for a time.
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
