"""Measure one task: check every contender, let them take turns, and repeat the check."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from gpu_bench.machine import Call, Machine
from gpu_bench.tensors import Columns, Tensors
from treefold.bench.clock import Pace, Rounds, Runner, Spread, calls_per_round, interleave, spread_of_calls
from treefold.execution.gpus import VARIABLE

#: Rounds of this length hide what it costs to begin and to end one.
_ROUND_S = 0.02


@dataclass(frozen=True, slots=True)
class Contender:
    """One contender: a call that does a task.

    Attributes:
        nbytes: Bytes that it reads and writes, or sends in each direction, for comparing bandwidths.
        executor: The value of ``TREEFOLD_GPU_EXECUTOR`` during the call.
        results: Returns the tensors with the results, from the value that the call returned. None for a contender that
            computes nothing, such as a copy.

    """

    name: str
    call: Call
    nbytes: int
    executor: str = ""
    results: Callable[[Any], Sequence[Sequence[Any]]] | None = None


@dataclass(frozen=True, slots=True)
class Task:
    """Some work and the contenders that do it, all on the same tensors.

    ``is_to_the_end``: the host takes part, so its clock is read when everything is done.
    """

    name: str
    tensors: Tensors
    contenders: tuple[Contender, ...]
    is_to_the_end: bool = False


@dataclass(frozen=True, slots=True)
class Measured:
    """The measurement of a task, with entries by contender.

    Attributes:
        times: Seconds of each round.
        nbytes: Bytes for comparing bandwidths.
        enqueued: Seconds of the host until a call returned.
        wrong: The number of wrong elements.
        executors: The executors that ran.
        notes: Reasons why contenders are missing.

    """

    name: str
    times: Mapping[str, Rounds]
    nbytes: Mapping[str, int]
    enqueued: Mapping[str, Rounds] = field(default_factory=dict)
    wrong: Mapping[str, int] = field(default_factory=dict)
    executors: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def to_data(self) -> dict[str, Any]:
        """Return it in plain types for JSON; times as their spread."""
        data = {name: getattr(self, name) for name in ("name", "nbytes", "wrong", "executors", "notes")}
        for name in ("times", "enqueued"):
            spreads = {contender: spread_of_calls(rounds) for contender, rounds in getattr(self, name).items()}
            data[f"{name}_s"] = {contender: dataclasses.asdict(spread) for contender, spread in spreads.items()}
        return data

    def share(self, contender: str, of: str) -> Spread:
        """Return the bandwidth of one contender over that of another; ratios are formed within each round."""
        weight = self.nbytes[contender] / self.nbytes[of]
        return self._ratio(of, contender, weight)

    def speedup(self, contender: str, over: str) -> Spread:
        """Return the time of another contender over that of this one; ratios are formed within each round."""
        return self._ratio(over, contender, 1.0)

    def _ratio(self, above: str, below: str, weight: float) -> Spread:
        pairs = zip(self.times[above], self.times[below], strict=True)
        return Spread.of([weight * Spread.of(one).median / Spread.of(other).median for one, other in pairs])


def measure(task: Task, machine: Machine, pace: Pace) -> Measured:
    """Return the times of all contenders that run here, and their wrong elements before and after."""
    wrong: dict[str, int] = {}
    executors: dict[str, str] = {}
    notes = []
    contenders = []
    for contender in task.contenders:
        try:
            _check(task, machine, contender, wrong, executors)
        except (RuntimeError, ValueError) as error:  # out of memory, or not supported by a peer here
            notes.append(f"{task.name}, {contender.name}: {type(error).__name__}: {str(error).splitlines()[0]}")
        else:
            contenders.append(contender)
    task.tensors.clear()
    clock = machine.to_the_end if task.is_to_the_end else machine.on_gpu
    times = _turns(contenders, clock, pace)
    own = () if task.is_to_the_end else [contender for contender in contenders if contender.executor]
    enqueued = _turns(own, machine.enqueued, pace)
    for contender in contenders:
        _check(task, machine, contender, wrong, executors)
    nbytes = {contender.name: contender.nbytes for contender in contenders}
    return Measured(task.name, times, nbytes, enqueued, wrong, executors, tuple(notes))


def _turns(contenders: Sequence[Contender], clock: Callable[[Call], Runner], pace: Pace) -> dict[str, Rounds]:
    """Let contenders take turns of equal length, in which fast ones are called more often."""
    runners = {}
    for contender in contenders:
        ask(contender.executor)
        runner = clock(contender.call)
        calls = calls_per_round(max(runner(2)), round_s=_ROUND_S)
        runners[contender.name] = _turn(contender.executor, runner, calls)
    return interleave(runners, pace)


def _turn(executor: str, runner: Runner, calls: int) -> Runner:
    def run(_calls: int) -> Sequence[float]:
        ask(executor)
        return runner(calls)

    return run


def ask(executor: str) -> None:
    """Select treefold's executor for plans on GPUs from now on; an empty name changes nothing."""
    if executor:
        os.environ[VARIABLE] = executor


def _check(
    task: Task, machine: Machine, contender: Contender, wrong: dict[str, int], executors: dict[str, str]
) -> None:
    """Do the task once on values that name their owners, and count the elements that are wrong."""
    ask(contender.executor)
    task.tensors.name_owners()
    made: Any = contender.call()
    machine.synchronize()
    if contender.results is None:
        return
    wrong[contender.name] = wrong.get(contender.name, 0) + task.tensors.count_wrong(contender.results(made))
    if contender.executor:
        executors[contender.name] = made[0].plan.executor


def in_place(columns: Columns) -> Callable[[Any], Sequence[Sequence[Any]]]:
    """Return a function that returns the results of a contender that works in place: the contributions."""
    return lambda _made: columns


def in_new(made: Any) -> Sequence[Sequence[Any]]:
    """Return the results of a contender that returns them as ``Mirrored``, one for each tensor."""
    return [mirrored.values for mirrored in made]


def forget_memory() -> None:
    """Free the GPU memory that is cached for later."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
