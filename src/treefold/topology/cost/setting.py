"""A movement on a machine at a size: the loads of its links, and its time in closed form."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from treefold.dtypes import itemsize
from treefold.plan import Movement
from treefold.plan.ir import Role
from treefold.topology.cost.pipeline import Lanes
from treefold.topology.cost.routes import Alternatives, Ends, Route, busiest_s, find_routes, width
from treefold.topology.cost.tasks import Task, make_tasks
from treefold.topology.graph import Topology

_MOST_CHUNKS = 4096  # of one pack: without latency the best chunk would be infinitely small


@dataclass(frozen=True)
class Load:
    """The load that a movement's copies put on a machine's links along given routes, at the movement's own size."""

    topology: Topology
    tasks: Sequence[Task]
    routes: Mapping[Ends, Sequence[Route]]
    busy_s: float

    @cached_property
    def lanes(self) -> Lanes:
        """The lanes of all tasks, of which folds take no time."""
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


class MovementOnMachine:
    """A movement on a machine: everything that does not depend on the size.

    ``known``: a cache of the alternatives of the machine's pairs, shared between movements.
    """

    def __init__(self, movement: Movement, topology: Topology, known: Alternatives | None = None) -> None:
        """Make tasks of the movement, and find the routes for its traffic."""
        self.topology = topology
        self._tasks, self._own = make_tasks(movement), input_bytes(movement)
        traffic: dict[Ends, float] = {}
        messages: dict[Ends, int] = {}
        for task in self._tasks:
            if task.travels:
                pair = task.source, task.target
                traffic[pair] = traffic.get(pair, 0.0) + task.nbytes
                messages[pair] = messages.get(pair, 0) + 1
        self._choice = find_routes(topology, traffic, messages=messages, known=known)
        self._alone = Load(topology, self._tasks, self._choice.alone, self._choice.alone_s)
        self._shared = Load(topology, self._tasks, self._choice.shared, self._choice.shared_s)

    def at(self, nbytes: float) -> Setting:
        """Return the movement scaled so that every replica brings ``nbytes`` bytes."""
        scale = nbytes / self._own if self._own else 0.0
        # Small values take the shortest routes, because longer ones add latency; large ones are spread over all routes.
        load = self._shared if self._choice.shares_at(scale) else self._alone
        return Setting(self.topology, nbytes, scale, self._tasks, load)


@dataclass(frozen=True)
class Setting:
    """A movement on a machine at a size: everything that does not depend on the number of chunks."""

    topology: Topology
    nbytes: float
    scale: float
    tasks: tuple[Task, ...]
    load: Load

    @property
    def routes(self) -> Mapping[Ends, Sequence[Route]]:
        """The routes of every pair that exchanges anything."""
        return self.load.routes

    @property
    def busy_s(self) -> float:
        """The seconds for which the busiest link is busy."""
        return self.load.busy_s * self.scale

    @property
    def pack_bytes(self) -> float:
        """The bytes of the largest copy, which is a pack."""
        return self.load.largest * self.scale

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
