"""Three trainings of one network on the same batches: on one device, and on N with treefold and with TensorFlow's rule.

Nothing is printed or read here: data, ops and progress come in by argument.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from treefold import CrossDeviceOps, PerReplica, ReduceOp
from treefold.cli.demo.data import CLASSES, Digits, Examples, draw_batches
from treefold.cli.demo.network import (
    Momentum,
    Parameters,
    copy_parameters,
    differentiate,
    draw_parameters,
    find_largest_difference,
    measure_accuracy,
    zeros_like,
)
from treefold.cli.demo.tensorflow_rule import sum_in_two_halves
from treefold.plan import Plan

BATCH_SIZE = 128
SIZES = (64, 128, 64, CLASSES)
OPTIMIZER = Momentum(learning_rate=0.1, momentum=0.9)
#: Parts of one batch, whose gradients are summed in any order and divided among any number of ranks.
PARTS = 16


@dataclass(frozen=True, slots=True)
class Training:
    """The outcome of one training.

    ``parameters``: of each replica. ``accuracy``: on all digits of the test, and ``accuracy_last`` on those that the
    last device holds. ``losses``: the global batch's, per step. ``apart``: the largest difference between a weight of
    the first replica and the same one trained on one device, after each step.
    """

    parameters: tuple[Parameters, ...]
    accuracy: float
    accuracy_last: float
    losses: tuple[float, ...]
    apart: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class DemoResult:
    """The three trainings. ``digits``: those that each device holds; None where examples are dealt at random.

    ``parts``: what ``differentiate_parts`` gives.
    """

    devices: tuple[str, ...]
    digits: tuple[tuple[int, ...], ...] | None
    alone: Training
    treefold: Training
    tensorflow: Training
    plan: Plan
    tree: Plan  # what devices with memories of their own would walk
    parts: tuple[Parameters, ...]

    @property
    def steps(self) -> int:
        """Number of steps, each with one reduction."""
        return len(self.alone.losses)

    @property
    def loses_one(self) -> bool:
        """Whether TensorFlow's rule loses a device: their number is odd."""
        return len(self.devices) % 2 == 1


def train_all(
    digits: Digits,
    *,
    ops: CrossDeviceOps,
    devices: int,
    steps: int,
    seed: int,
    shuffle: bool = False,
    on_step: Callable[[], None] = lambda: None,
) -> DemoResult:
    """Train from the same first parameters on the same batches, step by step side by side.

    ``devices``: 2 to 10. Each holds some of the digits, and takes those examples of every batch; with ``shuffle`` it
    takes any, as many as the others. The result depends on ``seed`` and on the machine's arithmetic only.
    """
    rng = np.random.default_rng(seed)
    start = draw_parameters(SIZES, rng)
    batches = draw_batches(len(digits.train), batch_size=BATCH_SIZE, steps=steps, rng=rng)
    held = None if shuffle else digits_of(devices)
    treefold = _Treefold(ops, start, devices)
    alone = _Team(start, 1, lambda gradients: gradients)
    teams = (
        _Team(start, devices, treefold.sum),
        _Team(start, devices, lambda gradients: [sum_in_two_halves(gradients)] * devices),
    )
    for indices in batches:
        batch = digits.train.pick(indices)
        alone.step([batch], beside=alone)
        for team in teams:
            team.step(deal(batch, devices, held), beside=alone)
        on_step()
    last = held[-1] if held is not None else tuple(range(CLASSES))
    ours, theirs = (team.result(digits.test, last) for team in teams)
    parts = differentiate_parts(digits, seed)
    return DemoResult(
        treefold.devices, held, alone.result(digits.test, last), ours, theirs, treefold.plan, treefold.tree, parts
    )


def differentiate_parts(digits: Digits, seed: int) -> tuple[Parameters, ...]:
    """Return the gradients of the parts of one batch, at the parameters that a training with this seed begins with."""
    parameters = draw_parameters(SIZES, np.random.default_rng(seed))
    parts = deal(digits.train.pick(np.arange(BATCH_SIZE)), PARTS, None)
    return tuple(differentiate(parameters, part.images, part.labels, batch_size=BATCH_SIZE)[1] for part in parts)


def digits_of(devices: int) -> tuple[tuple[int, ...], ...]:
    """Return which digits each device holds.

    >>> digits_of(3)
    ((0, 1, 2, 3), (4, 5, 6), (7, 8, 9))
    """
    owners = [digit * devices // CLASSES for digit in range(CLASSES)]
    return tuple(tuple(digit for digit, owner in enumerate(owners) if owner == device) for device in range(devices))


def deal(batch: Examples, devices: int, held: Sequence[Sequence[int]] | None) -> list[Examples]:
    """Return each device's part of a batch: the digits that it holds, or as many of any as the others."""
    if held is None:
        return [batch.pick(part) for part in np.array_split(np.arange(len(batch)), devices)]
    return [batch.pick(np.flatnonzero(np.isin(batch.labels, digits))) for digits in held]


class _Treefold:
    """The sum by treefold, into the memory of the gradients, with the plan that ran."""

    def __init__(self, ops: CrossDeviceOps, start: Parameters, devices: int) -> None:
        self.devices = tuple(f"cpu:{index}" for index in range(devices))
        value = PerReplica([start] * devices, devices=self.devices)
        self.tree = ops.plan(value, value, walked=True)
        self.plan: Plan
        self._ops = ops

    def sum(self, gradients: list[Parameters]) -> Sequence[Parameters]:
        value = PerReplica(gradients, devices=self.devices)
        mirrored = self._ops.reduce(ReduceOp.SUM, value, destinations=value, out=value)
        self.plan = cast("Plan", mirrored.plan)  # None only in a Mirrored made by hand
        return mirrored.values


class _Team:
    """Replicas of the network; each has parameters and optimiser state of its own, and sees its part of every batch."""

    def __init__(
        self, start: Parameters, devices: int, reduce: Callable[[list[Parameters]], Sequence[Parameters]]
    ) -> None:
        self.parameters = tuple(copy_parameters(start) for _ in range(devices))
        self._velocities = tuple(zeros_like(start) for _ in range(devices))
        self._reduce = reduce
        self._losses: list[float] = []
        self._apart: list[float] = []

    def step(self, parts: Sequence[Examples], *, beside: _Team) -> None:
        # Parts differ in size. Each gradient is its part's sum over the *global* batch size, so the mean over the batch
        # is their SUM for every number of devices; a MEAN of the parts' means would not be.
        batch_size = sum(map(len, parts))
        shares = [
            differentiate(parameters, part.images, part.labels, batch_size=batch_size)
            for parameters, part in zip(self.parameters, parts, strict=True)
        ]
        reduced = self._reduce([gradients for _, gradients in shares])
        for parameters, velocity, gradients in zip(self.parameters, self._velocities, reduced, strict=True):
            OPTIMIZER.update(parameters, velocity, gradients)
        self._losses.append(math.fsum(loss for loss, _ in shares))
        self._apart.append(find_largest_difference(self.parameters[0], beside.parameters[0]))

    def result(self, test: Examples, last: Sequence[int]) -> Training:
        some = test.pick(np.flatnonzero(np.isin(test.labels, last)))
        of_all, of_last = (measure_accuracy(self.parameters[0], part.images, part.labels) for part in (test, some))
        return Training(self.parameters, of_all, of_last, tuple(self._losses), tuple(self._apart))
