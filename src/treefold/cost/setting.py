"""A plan on a machine at a size: what it sends where, and what a closed form says it takes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from treefold.cost.routes import Ends, Route, busiest_s, choose_routes
from treefold.cost.tasks import Task, make_tasks
from treefold.dtypes import itemsize
from treefold.plan.ir import PlanDraft, Role
from treefold.topology import Topology

_MOST_CHUNKS = 4096  # of one pack: without latency the best chunk would be infinitely small


@dataclass(frozen=True)
class Setting:
    """A plan on a machine at a size: all that does not depend on the number of chunks."""

    plan: PlanDraft
    topology: Topology
    nbytes: float
    scale: float
    tasks: tuple[Task, ...]
    traffic: Mapping[Ends, float]
    routes: Mapping[Ends, Sequence[Route]]

    @staticmethod
    def of(plan: PlanDraft, topology: Topology, nbytes: float) -> Setting:
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
        return Setting(plan, topology, nbytes, scale, tasks, traffic, routes)

    @cached_property
    def busy_s(self) -> float:
        """Seconds for which the busiest link has something to carry."""
        return busiest_s(self.topology, self.traffic, self.routes)

    @property
    def pack_bytes(self) -> float:
        """Bytes of the largest pack."""
        return max((task.nbytes * self.scale for task in self.tasks if task.travels), default=0.0)

    def launch_s(self, launch_s: float) -> float:
        """Return what launching costs: nothing where nothing travels."""
        return launch_s if any(task.travels for task in self.tasks) else 0.0

    def best_num_chunks(self) -> int:
        """Return m / chunk* = sqrt((2D − 1)·(m/r) / alpha) for the longest way of a pack, 2D copies one after another.

        m/r is the time for which the busiest link is busy: all packs end together where each has its share.
        """
        hops, alphas = self._longest_way()
        busy = self.busy_s
        if hops <= 1 or not busy:
            return 1
        if not alphas:
            return _MOST_CHUNKS
        return max(1, min(_MOST_CHUNKS, round(math.sqrt((hops - 1) * busy * hops / alphas))))

    def estimate_s(self, num_chunks: int) -> float:
        """Return what the plan takes in k chunks, in closed form.

        Σ over steps of (alpha + load/k), which the first chunk takes, and k − 1 times what lies between two chunks: the
        busiest link's load/k, or the alpha + m/(k·c) of one copy where that is more. ``load``: seconds of the step's
        busiest link. For one tree this is (2D + k − 1)·(alpha + m/(k·c)), for a ring of k = 1 its 2·(n − 1) steps.
        """
        first = sum(alpha + load / num_chunks for alpha, load in self._steps)
        between = max([alpha + seconds / num_chunks for alpha, seconds in self._copies] + [self.busy_s / num_chunks])
        return first + (num_chunks - 1) * between

    @cached_property
    def _copies(self) -> tuple[tuple[float, float], ...]:
        """(alpha, seconds at full width) of every copy on every of its routes, each different pair once."""
        return tuple(
            {
                (route.alpha_s, self.scale * task.nbytes * route.share / self._width(route))
                for task in self.tasks
                if task.travels
                for route in self.routes[task.source, task.target]
            }
        )

    @cached_property
    def _steps(self) -> tuple[tuple[float, float], ...]:
        """(alpha, seconds of the busiest link) of every step that sends anything."""
        traffic: dict[int, dict[Ends, float]] = {}
        for task in self.tasks:
            if task.travels:
                pairs = traffic.setdefault(task.step, {})
                pairs[task.source, task.target] = pairs.get((task.source, task.target), 0.0) + self.scale * task.nbytes
        return tuple(
            (max(r.alpha_s for pair in pairs for r in self.routes[pair]), busiest_s(self.topology, pairs, self.routes))
            for pairs in traffic.values()
        )

    def _width(self, route: Route) -> float:
        return float(min(self.topology.capacities[link] for link in route.links))

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


def input_bytes(plan: PlanDraft) -> int:
    """Return the bytes that one replica brings: the largest sum over the leaves, where these differ."""
    found: dict[int, int] = {}
    for buffer in plan.buffers:
        if buffer.role is Role.INPUT:
            nbytes = buffer.length * itemsize(plan.leaves[buffer.leaf].dtype)
            found[buffer.position] = found.get(buffer.position, 0) + nbytes
    return max(found.values(), default=0)
