"""Simulates a movement on a machine: every chunk of every copy, over links that are shared fairly."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from treefold.dtypes import itemsize
from treefold.errors import SimulationError
from treefold.plan import Movement
from treefold.plan.ir import Combine, Concat, Copy, Role
from treefold.topology.cost.pipeline import Lanes, Pipeline, Task, make_tasks
from treefold.topology.cost.routes import LAUNCH_S, Alternatives, Ends, Route, busiest_s, find_routes, width
from treefold.topology.graph import Topology, is_number
from treefold.topology.timeline import Activity, Timeline, Wait

_MOST_SPANS = 32_000  # Chunks of all copies together that are simulated one by one.
_FEWEST_CHUNKS = 24  # The fewest chunks that are simulated if the rest is extrapolated.
_MOST_CHUNKS = 4096  # Chunks of one pack: without latency the best chunk would be infinitely small.
_KINDS = {Copy: "copy", Combine: "combine", Concat: "concat"}


def simulate(
    plan: Movement,
    topology: Topology,
    nbytes: float,
    *,
    chunk_bytes: float | str | None = "auto",
    reduce_bytes_per_s: float = math.inf,
    launch_s: float = LAUNCH_S,
) -> Timeline:
    """Return the timeline of a plan, or any movement, on a machine where every replica brings ``nbytes`` bytes.

    One plan serves every size: its ranges are scaled so that each replica's inputs have ``nbytes``. Copies take the
    routes of ``topology.cost.routes``. Each chunk pays the latency of the links that it crosses. A link has its
    bandwidth in each direction, and copies share it max-min fairly. If there are very many chunks, two shorter
    pipelines are simulated and their times extrapolated.

    Args:
        plan: what moves.
        topology: the machine; it has all devices of the plan.
        nbytes: bytes of one replica's values; a finite number ≥ 0.
        chunk_bytes: bytes of a pack that move at once, or None for whole packs. ``"auto"`` is the better of whole packs
            and chunks of sqrt(m·r·alpha/(2D − 1)) bytes, where latency and waiting for chunks cost the same.
        reduce_bytes_per_s: rate at which a device reads what it folds or copies within itself. By default it is
            infinite, so that only links count, as in the theory.
        launch_s: seconds before the first chunk starts, in a call in which anything travels.

    Returns:
        What every link and device does in each second, and the critical path.

    Raises:
        SimulationError: a device that the topology does not have, or a number that cannot be.

    >>> from treefold.planners.method import one_array
    >>> from treefold.planners.star import star
    >>> from treefold.topology import known_topology
    >>> movement = star("gpu:0").movement(one_array(["gpu:0", "gpu:1"]))
    >>> round(simulate(movement, known_topology("ring:2"), 25e9, chunk_bytes=None).duration_s, 3)
    2.0
    """
    times = MovementTimes(plan, topology)
    _check_numbers(nbytes, chunk_bytes, reduce_bytes_per_s, launch_s)
    setting = times.at(nbytes)
    if chunk_bytes == "auto":
        return _fastest(setting, reduce_bytes_per_s).timeline(launch_s)
    num_chunks = 1 if chunk_bytes is None else math.ceil(setting.load.largest * setting.scale / float(chunk_bytes))
    return _run_all(setting, max(num_chunks, 1), reduce_bytes_per_s).timeline(launch_s)


class MovementTimes:
    """The seconds that a movement takes on one machine by size, launch included: simulated, and in closed form.

    Everything that does not depend on the size is computed once, and each size is simulated once. ``known``: a cache of
    routes, shared between movements on this machine.
    """

    def __init__(self, movement: Movement, topology: Topology, known: Alternatives | None = None) -> None:
        """Make tasks of the movement, and find the routes for its traffic; nothing is simulated yet.

        Raises:
            SimulationError: a device of the movement that the topology does not have.

        """
        strangers = sorted(set(movement.devices) - set(topology.devices))
        if strangers:
            raise SimulationError.strangers(strangers, topology.devices)
        self.movement = movement
        self._topology, self._tasks, self._own = topology, make_tasks(movement), input_bytes(movement)
        self._simulated: dict[float, float] = {}
        traffic, messages = dict[Ends, float](), Counter[Ends]()
        for task in self._tasks:
            if task.travels:
                pair = task.source, task.target
                traffic[pair] = traffic.get(pair, 0.0) + task.nbytes
                messages[pair] += 1
        self._choice = find_routes(topology, traffic, messages=messages, known=known)
        self._alone = Load(topology, self._tasks, self._choice.alone, self._choice.alone_s)
        self._shared = Load(topology, self._tasks, self._choice.shared, self._choice.shared_s)

    def at(self, nbytes: float) -> Setting:
        """Return the movement scaled so that every replica brings ``nbytes`` bytes."""
        scale = nbytes / self._own if self._own else 0.0
        # Small values take the shortest routes, because longer ones add latency; large ones are spread over all routes.
        load = self._shared if self._choice.shares_at(scale) else self._alone
        return Setting(load, nbytes, scale)

    def predicted_s(self, nbytes: float) -> float:
        """Return the approximate seconds in closed form, for machines that are too large to simulate every chunk."""
        setting = self.at(nbytes)
        # As the simulation does: whole packs, or the best number of chunks, whichever ends first.
        links_s = min(setting.estimate_s(num_chunks) for num_chunks in (1, setting.best_num_chunks()))
        return setting.launch_s(LAUNCH_S) + links_s

    def least_s(self, nbytes: float) -> float:
        """Return a lower bound on the seconds for any number of chunks: those for which the busiest link is busy."""
        setting = self.at(nbytes)
        return setting.launch_s(LAUNCH_S) + setting.busy_s

    def simulated_s(self, nbytes: float) -> float:
        """Return the end of the simulated timeline."""
        if nbytes not in self._simulated:
            self._simulated[nbytes] = _fastest(self.at(nbytes), math.inf).duration_s(LAUNCH_S)
        return self._simulated[nbytes]

    def timeline(self, nbytes: float) -> Timeline:
        """Return the simulated timeline. Only its end is cached."""
        timeline = _fastest(self.at(nbytes), math.inf).timeline(LAUNCH_S)
        self._simulated[nbytes] = timeline.duration_s
        return timeline


def _fastest(setting: Setting, reduce_bytes_per_s: float) -> _PipelineRun:
    """Simulate with whole packs and with the best number of chunks, and return the run that ends first."""
    # A set, because both numbers may be 1. The whole pack is tried as well: the formula assumes that packs end
    # together.
    runs = (_run_all(setting, count, reduce_bytes_per_s) for count in {1, setting.best_num_chunks()})
    return min(runs, key=lambda run: run.duration_s(0.0))


def _run_all(setting: Setting, num_chunks: int, reduce_bytes_per_s: float) -> _PipelineRun:
    """Simulate the movement in ``num_chunks`` chunks; if these are too many, simulate fewer and extrapolate.

    Once the pipeline is full, every further chunk adds the same time. The difference of two shorter runs shows this
    time.
    """
    shown = max(_FEWEST_CHUNKS, _MOST_SPANS // max(setting.load.num_lanes, 1))
    if num_chunks <= shown + shown // 2:
        return _run(setting, num_chunks, num_chunks, reduce_bytes_per_s)
    half, full = (_run(setting, some, num_chunks, reduce_bytes_per_s) for some in (shown // 2, shown))
    # The difference of two runs leaves out filling and draining the pipeline, which both have once. Chunks have the
    # size of the full number in both, so that latency counts for as much as it will.
    per_chunk = (full.pipeline.now - half.pipeline.now) / (shown - shown // 2)
    longer = full.pipeline.now + (num_chunks - shown) * per_chunk
    # All times are stretched alike: the picture keeps its proportions, and its end is right.
    return dataclasses.replace(full, longer=longer / full.pipeline.now)


def _run(setting: Setting, shown: int, num_chunks: int, reduce_bytes_per_s: float) -> _PipelineRun:
    load, lanes = setting.load, setting.load.lanes
    if math.isfinite(reduce_bytes_per_s):
        lanes = Lanes(load.topology, load.tasks, load.routes, counts_folds=True)
    return _PipelineRun(setting, Pipeline(lanes, shown, setting.scale / num_chunks, reduce_bytes_per_s), num_chunks)


@dataclass(frozen=True)
class _PipelineRun:
    """A pipeline that has run; the factor ``longer`` scales all its times."""

    setting: Setting
    pipeline: Pipeline
    num_chunks: int
    longer: float = 1.0

    def duration_s(self, launch_s: float) -> float:
        """Return when the last chunk ends, with a launch of ``launch_s`` seconds before the first."""
        return self.setting.launch_s(launch_s) + self.pipeline.now * self.longer

    def timeline(self, launch_s: float) -> Timeline:
        """Return the activities as a timeline that begins with the launch."""
        line, longer, first_s = self.pipeline, self.longer, self.setting.launch_s(launch_s)
        lanes, scale = line.lanes, self.setting.scale
        tasks = [self.setting.load.tasks[number] for number in lanes.task]
        activities = tuple(
            Activity(
                _KINDS[type(task.action)],
                task.step,
                task.action.pack,
                route,
                nbytes * scale,
                tuple((first_s + a * longer, first_s + b * longer) for a, b in zip(starts, stops, strict=True)),
            )
            for task, route, nbytes, starts, stops in zip(
                tasks, lanes.routes, lanes.nbytes.tolist(), line.starts, line.stops, strict=True
            )
        )
        path = tuple(Wait(lane, chunk, *activities[lane].spans[chunk]) for lane, chunk in line.critical_path())
        per_span = self.num_chunks / line.num_chunks
        duration_s = self.duration_s(launch_s)
        return Timeline(duration_s, self.setting.nbytes, self.num_chunks, activities, path, per_span)


def _check_numbers(nbytes: float, chunk_bytes: float | str | None, reduce_bytes_per_s: float, launch_s: float) -> None:
    if not is_number(nbytes) or not 0 <= float(nbytes) < math.inf:
        raise SimulationError.number(nbytes=nbytes)
    if chunk_bytes not in {None, "auto"} and not (is_number(chunk_bytes) and 0 < float(chunk_bytes) < math.inf):
        raise SimulationError.number(chunk_bytes=chunk_bytes)
    if not is_number(reduce_bytes_per_s) or not reduce_bytes_per_s > 0:
        raise SimulationError.number(reduce_bytes_per_s=reduce_bytes_per_s)
    if not is_number(launch_s) or not 0 <= launch_s < math.inf:
        raise SimulationError.number(launch_s=launch_s)


@dataclass(frozen=True)
class Load:
    """The load that a movement's copies put on a machine's links along given routes, at the movement's own size."""

    topology: Topology
    tasks: Sequence[Task]
    routes: Mapping[Ends, Sequence[Route]]
    busy_s: float

    @cached_property
    def lanes(self) -> Lanes:
        """The lanes of all tasks; folds take no time."""
        return Lanes(self.topology, self.tasks, self.routes, counts_folds=False)

    @cached_property
    def copies(self) -> tuple[tuple[float, float], ...]:
        """The distinct pairs of alpha and seconds at full bandwidth, of every copy on each of its routes."""
        parts = {
            pair: [(route.alpha_s, route.share, width(self.topology, route.nodes)) for route in found]
            for pair, found in self.routes.items()
        }
        sizes = {((task.source, task.target), task.nbytes) for task in self.tasks if task.travels}
        return tuple({(alpha, nbytes * share / rate) for pair, nbytes in sizes for alpha, share, rate in parts[pair]})

    @cached_property
    def largest(self) -> float:
        """The bytes of the largest copy, 0 if nothing travels."""
        return max((task.nbytes for task in self.tasks if task.travels), default=0.0)

    @cached_property
    def num_lanes(self) -> int:
        """The number of copies, each of them counted once for every route that it takes."""
        return sum(len(self.routes[task.source, task.target]) for task in self.tasks if task.travels)

    @cached_property
    def steps(self) -> tuple[tuple[float, float], ...]:
        """The pairs of alpha and the busiest link's seconds, for every step that sends anything."""
        traffic: dict[int, dict[Ends, float]] = {}
        for task in self.tasks:
            if task.travels:
                pairs = traffic.setdefault(task.step, {})
                pairs[task.source, task.target] = pairs.get((task.source, task.target), 0.0) + task.nbytes
        return tuple(
            (max(r.alpha_s for pair in pairs for r in self.routes[pair]), busiest_s(self.topology, pairs, self.routes))
            for pairs in traffic.values()
        )

    @cached_property
    def longest_path(self) -> tuple[int, float]:
        """The largest number of copies that follow each other, and the sum of their latencies in seconds."""
        best: list[tuple[int, float]] = []
        for task in self.tasks:
            # Tasks stand in the order of the steps, so what a task needs is known before it: one pass is enough.
            hops, alphas = max((best[need.task] for need in task.needs), default=(0, 0.0))
            if task.travels:
                hops += 1
                alphas += max(route.alpha_s for route in self.routes[task.source, task.target])
            best.append((hops, alphas))
        return max(best, default=(0, 0.0))


@dataclass(frozen=True)
class Setting:
    """A movement on a machine at a size: everything that does not depend on the number of chunks."""

    load: Load
    nbytes: float
    scale: float

    @property
    def busy_s(self) -> float:
        """The seconds for which the busiest link is busy."""
        return self.load.busy_s * self.scale

    def launch_s(self, launch_s: float) -> float:
        """Return the seconds of a launch, or 0 if nothing travels."""
        return launch_s if self.load.largest else 0.0

    def best_num_chunks(self) -> int:
        """Return the best number of chunks, sqrt((2D − 1)·(m/r) / alpha), for 2D copies on the longest path of a pack.

        m/r is the time for which the busiest link is busy. The formula assumes that all packs end together.
        """
        hops, alphas = self.load.longest_path
        busy = self.busy_s
        # One copy alone has nothing to overlap with: chunks would only add latencies.
        if hops <= 1 or not busy:
            return 1
        # Without latency, more chunks are always better; the bound is what can be simulated and issued.
        if not alphas:
            return _MOST_CHUNKS
        # T(k) = (2D − 1 + k)·(alpha + m/(r·k)) has two terms in k: k·alpha and (2D − 1)·m/(r·k). Their sum is least
        # where they are equal. ``alphas / hops`` is the mean latency of a copy on that path.
        return max(1, min(_MOST_CHUNKS, round(math.sqrt((hops - 1) * busy * hops / alphas))))

    def estimate_s(self, num_chunks: int) -> float:
        """Return the seconds that the movement takes in k chunks, in closed form.

        The first chunk takes Σ over steps of (alpha + load/k), and ``load`` is the seconds of the step's busiest link.
        Each of the k − 1 others ends later by the busiest link's load/k, or by one copy's alpha + m/(k·c) if that is
        more. For one tree this is (2D + k − 1)·(alpha + m/(k·c)), for a ring with k = 1 its 2·(n − 1) steps.
        """
        part = self.scale / num_chunks
        first = sum(alpha + seconds * part for alpha, seconds in self.load.steps)
        # Lanes pay their latency before each chunk, so a single copy can be slower than the busiest link that several
        # share.
        between = max([alpha + seconds * part for alpha, seconds in self.load.copies] + [self.load.busy_s * part])
        return first + (num_chunks - 1) * between


def input_bytes(movement: Movement) -> int:
    """Return the bytes of one replica's inputs; the largest number if replicas differ."""
    found: dict[int, int] = {}
    for buffer in movement.buffers:
        if buffer.role is Role.INPUT:
            nbytes = buffer.length * itemsize(movement.leaves[buffer.leaf].dtype)
            found[buffer.position] = found.get(buffer.position, 0) + nbytes
    return max(found.values(), default=0)
