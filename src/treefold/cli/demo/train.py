"""Two trainings of one network on the same batches: data-parallel over N devices, and alone on one.

Nothing is printed or read here: data, ops, clock and progress come in by argument.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from treefold import CrossDeviceOps, PerReplica, ReduceOp
from treefold.cli.demo.data import Digits, Examples, draw_batches
from treefold.cli.demo.network import (
    Momentum,
    Parameters,
    copy_parameters,
    differentiate,
    draw_parameters,
    measure_accuracy,
    zeros_like,
)
from treefold.plan import Plan

BATCH_SIZE = 128
SIZES = (64, 128, 64, 10)
OPTIMIZER = Momentum(learning_rate=0.1, momentum=0.9)

#: Called after each step with the name of the training, ``"replicas"`` or ``"alone"``.
OnStep = Callable[[str], None]
Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Training:
    """What one training gave: each replica's parameters, the test accuracy, the global batch's loss per step, times."""

    parameters: tuple[Parameters, ...]
    accuracy: float
    losses: tuple[float, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class DemoResult:
    """Both trainings, and what the reductions of the data-parallel one took."""

    devices: tuple[str, ...]
    replicas: Training
    alone: Training
    reduce_seconds: tuple[float, ...]
    plan: Plan
    tree: Plan  # what devices with memories of their own would walk

    @property
    def steps(self) -> int:
        """Number of steps, each with one reduction."""
        return len(self.reduce_seconds)


def train_both(
    digits: Digits,
    *,
    ops: CrossDeviceOps,
    devices: int,
    steps: int,
    seed: int,
    clock: Clock,
    on_step: OnStep,
) -> DemoResult:
    """Train from the same first parameters on the same batches, with ``ops`` over ``devices`` and alone.

    ``devices`` is at least 1 and at most ``BATCH_SIZE``. The result depends on ``seed`` and the machine's arithmetic
    only; the times on everything.
    """
    rng = np.random.default_rng(seed)
    start = draw_parameters(SIZES, rng)
    batches = draw_batches(len(digits.train), batch_size=BATCH_SIZE, steps=steps, rng=rng)
    team = _Replicas(ops, start, devices=devices, clock=clock)
    losses, seconds = _run(team.step, digits.train, batches, clock=clock, on_step=lambda: on_step("replicas"))
    replicas = Training(team.parameters, _test(team.parameters[0], digits.test), losses, seconds)
    single = _Alone(start)
    losses, seconds = _run(single.step, digits.train, batches, clock=clock, on_step=lambda: on_step("alone"))
    alone = Training((single.parameters,), _test(single.parameters, digits.test), losses, seconds)
    return DemoResult(team.devices, replicas, alone, tuple(team.reduce_seconds), team.plan, team.tree)


class _Replicas:
    """N replicas; each has its own parameters and optimiser state, and sees its own part of every batch."""

    def __init__(self, ops: CrossDeviceOps, start: Parameters, *, devices: int, clock: Clock) -> None:
        self.parameters = tuple(copy_parameters(start) for _ in range(devices))
        self.devices = tuple(f"cpu:{index}" for index in range(devices))
        self.reduce_seconds: list[float] = []
        self.plan: Plan
        value = PerReplica([start] * devices, devices=self.devices)
        self.tree = ops.plan(value, value, walked=True)
        self._velocities = tuple(zeros_like(start) for _ in range(devices))
        self._ops = ops
        self._clock = clock

    def step(self, batch: Examples) -> float:
        # Parts may differ in size by one. Each gradient is its part's sum over the *global* batch size, so the mean
        # over the batch is their SUM for every number of devices; a MEAN of the parts' means would not be.
        parts = np.array_split(np.arange(len(batch)), len(self.devices))
        shares = [
            differentiate(parameters, part.images, part.labels, batch_size=len(batch))
            for parameters, part in zip(self.parameters, map(batch.pick, parts), strict=True)
        ]
        reduced = self._reduce([gradients for _, gradients in shares])
        for parameters, velocity, gradients in zip(self.parameters, self._velocities, reduced, strict=True):
            OPTIMIZER.update(parameters, velocity, gradients)
        return math.fsum(loss for loss, _ in shares)

    def _reduce(self, gradients: list[Parameters]) -> tuple[Parameters, ...]:
        begin = self._clock()
        value = PerReplica(gradients, devices=self.devices)
        mirrored = self._ops.reduce(ReduceOp.SUM, value, destinations=value, out=value)
        self.reduce_seconds.append(self._clock() - begin)
        self.plan = cast("Plan", mirrored.plan)  # None only in a Mirrored made by hand
        return tuple(mirrored.values)


class _Alone:
    """The same network without treefold: one set of parameters, the whole batch at once."""

    def __init__(self, start: Parameters) -> None:
        self.parameters = copy_parameters(start)
        self._velocity = zeros_like(start)

    def step(self, batch: Examples) -> float:
        loss, gradients = differentiate(self.parameters, batch.images, batch.labels, batch_size=len(batch))
        OPTIMIZER.update(self.parameters, self._velocity, gradients)
        return loss


def _run(
    step: Callable[[Examples], float],
    examples: Examples,
    batches: NDArray[np.int64],
    *,
    clock: Clock,
    on_step: Callable[[], None],
) -> tuple[tuple[float, ...], float]:
    """Return the loss of every step and the seconds that all took."""
    begin = clock()
    losses = []
    for indices in batches:
        losses.append(step(examples.pick(indices)))
        on_step()
    return tuple(losses), clock() - begin


def _test(parameters: Parameters, examples: Examples) -> float:
    return measure_accuracy(parameters, examples.images, examples.labels)
