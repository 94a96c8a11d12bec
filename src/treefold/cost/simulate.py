"""The price of a plan on a machine: every chunk of every copy, over links that are shared fairly."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from treefold.cost.lanes import Lane
from treefold.cost.pipeline import Pipeline
from treefold.cost.routes import Ends, Route, busiest_s, choose_routes
from treefold.cost.tasks import Task, make_tasks
from treefold.dtypes import itemsize
from treefold.errors import SimulationError
from treefold.plan.ir import Combine, Concat, Copy, Plan, PlanDraft, Role
from treefold.timeline import Activity, Timeline, Wait
from treefold.topology import Topology

_MOST_CHUNKS = 4096  # of one pack: without latency the best chunk would be infinitely small
_MOST_SPANS = 32_000  # chunks of all copies together that are simulated one by one
_FEWEST_CHUNKS = 24  # that stand for more of them
_KINDS = {Copy: "copy", Combine: "combine", Concat: "concat"}


def simulate(
    plan: Plan,
    topology: Topology,
    nbytes: float,
    *,
    chunk_bytes: float | str | None = "auto",
    reduce_bytes_per_s: float = math.inf,
) -> Timeline:
    """Return what a plan does on a machine when every replica brings ``nbytes`` bytes.

    One plan serves every size: its ranges are drawn out until each replica's inputs have ``nbytes``. Copies take the
    routes of ``treefold.cost.routes``, each chunk pays the latency of the links it crosses, links carry their bandwidth
    in each direction and are shared max-min fairly. ``chunk_bytes``: how much of a pack moves at once; ``None``: all of
    it; ``"auto"``: the better of that and sqrt(m·r·alpha/(2D − 1)), the size at which latency and waiting for chunks
    cost the same. ``reduce_bytes_per_s``: how fast a device reads what it folds or copies within itself; the default
    counts links alone, as the theory does. A pipeline of very many chunks is simulated with two smaller numbers of them
    and drawn out.

    Raises:
        SimulationError: a device of the plan that the topology does not have, or a number that cannot be.

    >>> from treefold.planners import plan_star
    >>> from treefold.topology import known_topology
    >>> round(simulate(plan_star(["gpu:0", "gpu:1"]), known_topology("ring:2"), 25e9, chunk_bytes=None).duration_s, 3)
    2.0
    """
    _check(plan, topology, nbytes, chunk_bytes, reduce_bytes_per_s)
    setting = Setting.of(plan, topology, nbytes, reduce_bytes_per_s)
    if chunk_bytes == "auto":
        whole = setting.timeline(1)
        num_chunks = setting.best_num_chunks()
        if num_chunks == 1:
            return whole
        return min(whole, setting.timeline(num_chunks), key=lambda timeline: timeline.duration_s)
    num_chunks = 1 if chunk_bytes is None else math.ceil(setting.pack_bytes / float(chunk_bytes))
    return setting.timeline(max(num_chunks, 1))


@dataclass(frozen=True)
class Setting:
    """A plan on a machine at a size: all that does not depend on the number of chunks."""

    plan: PlanDraft
    topology: Topology
    nbytes: float
    scale: float
    tasks: tuple[Task, ...]
    routes: Mapping[Ends, Sequence[Route]]
    reduce_bytes_per_s: float

    @staticmethod
    def of(plan: PlanDraft, topology: Topology, nbytes: float, reduce_bytes_per_s: float) -> Setting:
        """Find the routes that suit the plan's traffic at this size."""
        tasks = make_tasks(plan, 1)
        own = input_bytes(plan)
        scale = nbytes / own if own else 0.0
        traffic: dict[Ends, float] = {}
        messages: dict[Ends, int] = {}
        for task in tasks:
            if task.travels:
                pair = task.source, task.target
                traffic[pair] = traffic.get(pair, 0.0) + task.nbytes * scale
                messages[pair] = messages.get(pair, 0) + 1
        routes = choose_routes(topology, traffic, messages=messages)
        return Setting(plan, topology, nbytes, scale, tasks, routes, reduce_bytes_per_s)

    @property
    def pack_bytes(self) -> float:
        """Bytes of the largest pack."""
        return max((task.nbytes * self.scale for task in self.tasks if task.travels), default=0.0)

    def best_num_chunks(self) -> int:
        """Return m / chunk* = sqrt((2D − 1)·(m/r) / alpha) for the longest way of a pack, 2D copies one after another.

        m/r is the time for which the busiest link is busy: all packs end together where each has its share.
        """
        hops, alphas = self._longest_way()
        traffic: dict[Ends, float] = {}
        for task in self.tasks:
            if task.travels:
                pair = task.source, task.target
                traffic[pair] = traffic.get(pair, 0.0) + task.nbytes * self.scale
        busy = busiest_s(self.topology, traffic, self.routes)
        if hops <= 1 or not busy:
            return 1
        if not alphas:
            return _MOST_CHUNKS
        return max(1, min(_MOST_CHUNKS, round(math.sqrt((hops - 1) * busy * hops / alphas))))

    def timeline(self, num_chunks: int) -> Timeline:
        """Run the pipeline with so many chunks, or with fewer that stand for them."""
        lanes = max(sum(len(self.routes[task.source, task.target]) for task in self.tasks if task.travels), 1)
        shown = max(_FEWEST_CHUNKS, _MOST_SPANS // lanes)
        if num_chunks <= shown + shown // 2:
            return self._run(num_chunks, num_chunks).timeline(1.0)
        half, full = self._run(shown // 2, num_chunks), self._run(shown, num_chunks)
        per_chunk = (full.pipeline.now - half.pipeline.now) / (shown - shown // 2)
        longer = full.pipeline.now + (num_chunks - shown) * per_chunk
        return full.timeline(longer / full.pipeline.now)

    def _longest_way(self) -> tuple[int, float]:
        """Return how many copies follow each other at most, and their latencies in seconds."""
        best: list[tuple[int, float]] = []
        for task in self.tasks:
            hops, alphas = max((best[other] for other, _ in task.needs), default=(0, 0.0))
            if task.travels:
                hops += 1
                alphas += max(route.alpha_s for route in self.routes[task.source, task.target])
            best.append((hops, alphas))
        return max(best, default=(0, 0.0))

    def _run(self, shown: int, num_chunks: int) -> _Run:
        tasks = make_tasks(self.plan, shown)
        links = {ends: row for row, ends in enumerate(self.topology.capacities)}
        capacities = [float(width) for width in self.topology.capacities.values()]
        devices = {name: len(capacities) + row for row, name in enumerate(self.topology.devices)}
        capacities += [self.reduce_bytes_per_s] * len(devices)
        lanes, ways = list[Lane](), list[tuple[str, ...]]()
        for number, task in enumerate(tasks):
            part = task.nbytes * self.scale / num_chunks
            if task.travels:
                for route in self.routes[task.source, task.target]:
                    used = tuple(links[ends] for ends in route.links)
                    lanes.append(Lane(number, part * route.share, route.alpha_s, used))
                    ways.append(route.nodes)
            else:
                used = (devices[task.source],) if math.isfinite(self.reduce_bytes_per_s) else ()
                lanes.append(Lane(number, part, 0.0, used))
                ways.append((task.source,))
        pipeline = Pipeline(lanes, [task.needs for task in tasks], capacities, shown)
        return _Run(self, tasks, tuple(ways), pipeline, num_chunks)


@dataclass(frozen=True)
class _Run:
    setting: Setting
    tasks: tuple[Task, ...]
    ways: tuple[tuple[str, ...], ...]
    pipeline: Pipeline
    num_chunks: int

    def timeline(self, longer: float) -> Timeline:
        """Put what happened on a timeline, all times drawn out by a factor."""
        line = self.pipeline
        activities = tuple(
            Activity(
                _KINDS[type(self.tasks[lane.task].action)],
                self.tasks[lane.task].step,
                self.tasks[lane.task].action.pack,
                way,
                lane.nbytes * self.num_chunks,
                tuple((start * longer, stop * longer) for start, stop in zip(starts, stops, strict=True)),
            )
            for lane, way, starts, stops in zip(line.lanes, self.ways, line.starts, line.stops, strict=True)
        )
        path = tuple(
            Wait(lane, chunk, line.starts[lane][chunk] * longer, line.stops[lane][chunk] * longer)
            for lane, chunk in self._critical_path()
        )
        per_span = self.num_chunks / line.num_chunks
        return Timeline(line.now * longer, self.setting.nbytes, self.num_chunks, activities, path, per_span)

    def _critical_path(self) -> list[tuple[int, int]]:
        """Return (lane, chunk), from the first to the last to end: each waited for the one before."""
        line = self.pipeline
        last = line.num_chunks - 1
        at = max(((lane, last) for lane in range(len(line.lanes))), key=lambda at: line.stops[at[0]][at[1]], default=None)
        path = []
        while at is not None:
            path.append(at)
            lane, chunk = at
            before = [(lane, chunk - 1)] if chunk else []
            for task, counts in line.needs[line.lanes[lane].task]:
                if counts[chunk]:
                    before += [(other, counts[chunk] - 1) for other in line.lanes_of[task]]
            at = max(before, key=lambda at: line.stops[at[0]][at[1]], default=None)
        return path[::-1]


def input_bytes(plan: PlanDraft) -> int:
    """Return the bytes that one replica brings: the largest sum over the leaves, where these differ."""
    found: dict[int, int] = {}
    for buffer in plan.buffers:
        if buffer.role is Role.INPUT:
            nbytes = buffer.length * itemsize(plan.leaves[buffer.leaf].dtype)
            found[buffer.position] = found.get(buffer.position, 0) + nbytes
    return max(found.values(), default=0)


def _check(
    plan: PlanDraft, topology: Topology, nbytes: float, chunk_bytes: float | str | None, reduce_bytes_per_s: float
) -> None:
    strangers = sorted({buffer.device for buffer in plan.buffers} - set(topology.devices))
    if strangers:
        raise SimulationError.strangers(strangers, topology.devices)
    if not _is_number(nbytes) or not 0 <= float(nbytes) < math.inf:
        raise SimulationError.nbytes(nbytes)
    if chunk_bytes not in {None, "auto"} and not (_is_number(chunk_bytes) and 0 < float(chunk_bytes) < math.inf):  # type: ignore[arg-type]
        raise SimulationError.chunk_bytes(chunk_bytes)
    if not _is_number(reduce_bytes_per_s) or not reduce_bytes_per_s > 0:
        raise SimulationError.reduce_rate(reduce_bytes_per_s)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
