"""A machine that you do not have: its links as token buckets, its copies as threads, its values real.

A plan runs on NumPy arrays in chunks, pipelined, every copy in a thread that may pass a chunk on only as fast as the
links of its route give out tokens. What comes out is the true result and the time it took, beside the time that was
predicted for it.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from treefold.backends import HostArray
from treefold.backends.numpy import NumpyBackend
from treefold.cost import simulate
from treefold.cost.routes import Ends, Route
from treefold.cost.setting import MovementOnMachine
from treefold.cost.tasks import Task, make_tasks, whole_cuts
from treefold.errors import SimulationError
from treefold.errors.words import counted
from treefold.execution.actions import FlatMemory, leaf_actions, outputs
from treefold.execution.operands import Operand
from treefold.fold import Fold
from treefold.plan import Movement
from treefold.plan.actions import cut
from treefold.plan.ir import Goal, Role
from treefold.reduce_op import ReduceOp, ReduceOpLike
from treefold.testing.clocks import Clock, RealClock
from treefold.timeline import Timeline
from treefold.topology import Link, Topology

_NUMPY = NumpyBackend()
#: A chunk takes its tokens in so many portions, so that copies that share a link take turns within a chunk too.
_PORTIONS = 4
#: Tokens a link saves for a copy that was ready and woken late: seconds. More than an operating system is late by.
_SAVED_S = 0.05


@dataclass(frozen=True)
class Emulation:
    """The results and times of a plan on an emulated machine.

    ``results``: of every leaf, one array per component of the destination. ``measured_s``: by the clock, of the slowed
    machine. ``predicted``: what the simulator says of the same machine, chunks included.
    """

    results: tuple[tuple[HostArray, ...], ...]
    measured_s: float
    predicted: Timeline

    @property
    def error(self) -> float:
        """Measured over predicted, less one; 0 where nothing was to be done."""
        return self.measured_s / self.predicted.duration_s - 1 if self.predicted.duration_s else 0.0

    def __str__(self) -> str:
        """Return measured beside predicted, in a line."""
        line = self.predicted
        return (
            f"{line.nbytes / 1e6:.3g} MB in {counted(line.num_chunks, 'chunk')}: measured {self.measured_s:.4g} s, "
            f"predicted {line.duration_s:.4g} s ({self.error:+.1%})"
        )


def emulate(topology: Topology, *, slower: float = 1000.0, clock: Clock | None = None) -> Emulator:
    """Return this machine, so many times slower, in threads.

    Bandwidths are divided by ``slower`` and latencies multiplied, so that every plan takes that many times as long and
    the order of plans stays. ``clock``: ``RealClock()``, or ``VirtualClock()``, by which waiting takes no time and a
    busy computer makes no difference.

    Raises:
        SimulationError: ``slower`` is not a finite number above 0.

    >>> import numpy as np
    >>> from treefold.planners.method import one_array
    >>> from treefold.planners.star import star
    >>> from treefold.testing import VirtualClock
    >>> from treefold.topology import known_topology
    >>> machine = emulate(known_topology("ring:3"), clock=VirtualClock())
    >>> moved = star("gpu:0").movement(one_array(["gpu:0", "gpu:1", "gpu:2"], 6))
    >>> done = machine.run(moved, [[np.full(6, 2**r, "float32") for r in range(3)]])
    >>> done.results[0][2].tolist()
    [7.0, 7.0, 7.0, 7.0, 7.0, 7.0]
    """
    return Emulator(slowed(topology, slower), RealClock() if clock is None else clock)


def slowed(topology: Topology, slower: float) -> Topology:
    """Return a machine with bandwidths divided and latencies multiplied by ``slower``."""
    if not 0 < slower < float("inf"):
        raise SimulationError.number(slower=slower)
    factor = Fraction(slower)
    links = tuple(
        Link(one.source, one.target, one.kind, float(Fraction(one.bytes_per_s) / factor), one.alpha_s * slower)
        for one in topology.links
    )
    return replace(topology, links=links)


@dataclass(frozen=True)
class Emulator:
    """A machine in threads; ``topology`` is the slowed one."""

    topology: Topology
    clock: Clock

    def run(
        self,
        plan: Movement,
        inputs: Sequence[Sequence[Any]],
        op: ReduceOpLike = "sum",
        *,
        chunk_bytes: float | str | None = "auto",
    ) -> Emulation:
        """Run a plan on the arrays of its replicas, ``inputs[leaf][replica]``, and return results and times.

        Raises:
            SimulationError: a plan that gathers or copies instead of folding, or arrays that are not those of the plan.

        """
        if any(leaf.goal is not Goal.FOLD for leaf in plan.leaves):
            raise SimulationError.only_folds()
        fold = Fold(ReduceOp.parse(op))
        operands = _operands(plan, inputs)
        memory = _memory(plan, operands, fold)
        nbytes = sum(operand.arrays[0].nbytes for operand in operands)
        predicted = simulate(plan, self.topology, nbytes, chunk_bytes=chunk_bytes, launch_s=0.0)
        routes = MovementOnMachine(plan, self.topology).at(nbytes).routes

        def perform(task: Task, start: int, stop: int) -> None:
            if start < stop:
                memory.perform(cut(task.action, start, stop))

        machine = _Machine(self.topology, self.clock, routes, predicted.num_chunks)
        measured_s = machine.run(make_tasks(plan), perform)
        results = outputs(plan, operands, lambda index: memory.arrays[index])
        return Emulation(tuple(results), measured_s, predicted)


def _operands(plan: Movement, inputs: Sequence[Sequence[Any]]) -> list[Operand]:
    """Return the inputs, which must be those of the plan."""
    for buffer in plan.buffers:
        if buffer.role is Role.INPUT:
            dtype = plan.leaves[buffer.leaf].dtype
            given = inputs[buffer.leaf] if buffer.leaf < len(inputs) else ()
            array = np.asarray(given[buffer.position]) if buffer.position < len(given) else None
            if array is None or array.size != buffer.length or array.dtype.name != dtype:
                raise SimulationError.input_array(buffer.name, buffer.length, dtype)
    leaves = inputs[: len(plan.leaves)]
    return [Operand(_NUMPY, tuple(map(np.asarray, arrays)), np.shape(arrays[0])) for arrays in leaves]


def _memory(plan: Movement, operands: Sequence[Operand], fold: Fold) -> FlatMemory:
    leaves = leaf_actions(plan, operands, fold)
    arrays = [
        operands[buffer.leaf].arrays[buffer.position].reshape(-1)
        if buffer.role is Role.INPUT
        else np.full(buffer.length, 0, leaves[buffer.leaf].dtype(buffer.role))  # every page is there before time counts
        for buffer in plan.buffers
    ]
    return FlatMemory(leaves, plan.buffers, arrays, _NUMPY.assign)


class _Bucket:
    """A link's tokens. Whoever takes some knows from when to when they flow."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s, self._free_at, self._lock = bytes_per_s, 0.0, threading.Lock()

    def take(self, nbytes: float, since: float) -> float:
        """Take tokens for bytes that have been ready ``since`` then; return when the last of them has flowed."""
        with self._lock:
            self._free_at = max(self._free_at, since) + nbytes / self._bytes_per_s
            return self._free_at


class _Progress:
    """The chunks of a task that are done, the times at which they ended, and the threads that wait for more."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._times: list[float] = []
        self._waiting: list[tuple[int, threading.Event]] = []

    def wait_for(self, count: int) -> float:
        """Return when so many chunks are done: the time at which they were."""
        with self._lock:
            if count <= len(self._times):
                return self._times[count - 1] if count else 0.0
            event = threading.Event()
            self._waiting.append((count, event))
        self._clock.wait(event)
        return self._times[count - 1]

    def add(self, when: float) -> None:
        """Note that one more chunk is done."""
        with self._lock:
            self._times.append(when)
            ready = [event for count, event in self._waiting if count <= len(self._times)]
            self._waiting = [item for item in self._waiting if item[0] > len(self._times)]
        for event in ready:
            self._clock.wake(event)


class _Machine:
    """Runs tasks, one thread each."""

    def __init__(
        self, topology: Topology, clock: Clock, routes: Mapping[Ends, Sequence[Route]], num_chunks: int
    ) -> None:
        self._clock, self._routes, self._num_chunks = clock, routes, num_chunks
        self._buckets = {ends: _Bucket(float(width)) for ends, width in topology.capacities.items()}
        self._errors: list[BaseException] = []
        self._go = threading.Event()
        self._start = 0.0

    def run(self, tasks: Sequence[Task], do: Callable[[Task, int, int], None]) -> float:
        """Return the seconds from the start of the first chunk to the end of the last."""
        progress = [_Progress(self._clock) for _ in tasks]
        self._clock.enter(len(tasks) + 1)
        threads = [
            threading.Thread(target=self._work, args=(task, progress[number], progress, do), daemon=True)
            for number, task in enumerate(tasks)
        ]
        for thread in threads:
            thread.start()
        self._start = self._clock.now()
        self._go.set()
        ends = [progress[number].wait_for(self._num_chunks) for number in range(len(tasks))]
        stop = max([self._clock.now(), *ends])
        self._clock.leave()
        for thread in threads:
            thread.join()
        if self._errors:
            raise self._errors[0]
        return stop - self._start

    def _work(
        self, task: Task, mine: _Progress, progress: Sequence[_Progress], do: Callable[[Task, int, int], None]
    ) -> None:
        borders = whole_cuts(task.length, self._num_chunks).astype(int).tolist()
        counts = [(need.task, need.counts(self._num_chunks, whole=True).tolist()) for need in task.needs]
        self._go.wait()  # not through the clock: until all have started, no time shall pass
        at = self._start
        for chunk, (start, stop) in enumerate(itertools.pairwise(borders)):
            ready = [progress[other].wait_for(count[chunk]) for other, count in counts]
            at = max(at, *ready, self._clock.now() - _SAVED_S)
            try:
                if task.travels:
                    at = self._send(task, task.nbytes * (stop - start) / task.length, at)
                do(task, start, stop)
            except BaseException as error:  # noqa: BLE001 - raised where the caller is, when all threads are done
                self._errors.append(error)
            mine.add(at)
        self._clock.leave()

    def _send(self, task: Task, nbytes: float, since: float) -> float:
        """Let a chunk flow over all its routes at once; return when all of it has."""
        routes = self._routes[task.source, task.target]
        flowing = [(since + route.alpha_s, number, 0) for number, route in enumerate(routes)]
        heapq.heapify(flowing)
        while flowing:
            at, number, portions = heapq.heappop(flowing)
            self._clock.sleep_until(at)
            since = max(since, at)
            if portions < _PORTIONS:
                ready = max(at, self._clock.now() - _SAVED_S)
                portion = nbytes * routes[number].share / _PORTIONS
                ends = max(self._buckets[link].take(portion, ready) for link in routes[number].links)
                heapq.heappush(flowing, (ends, number, portions + 1))
        return since
