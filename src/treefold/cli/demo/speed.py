"""How long a sum of real gradients takes: treefold beside the loop that one would write in NumPy."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from treefold import CrossDeviceOps, PerReplica, ReduceOp
from treefold.bench.models import resnet50
from treefold.errors.words import bytes_in_words, counted, seconds_in_words

Gradients = list[NDArray[np.float32]]  # of one replica
_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Speed:
    """Median seconds of a sum of ``arrays`` gradients, ``nbytes`` on each of ``devices`` devices, in place."""

    devices: int
    arrays: int
    nbytes: int
    treefold_s: float
    loop_s: float

    @property
    def ratio(self) -> float:
        """How many times as long the loop takes."""
        return self.loop_s / self.treefold_s

    @property
    def what(self) -> str:
        """What was summed, in words."""
        arrays = f"{counted(self.arrays, 'array')}, {bytes_in_words(self.nbytes)} per device"
        return f"the gradients of a ResNet-50 ({arrays}) over {counted(self.devices, 'device')}"

    def __str__(self) -> str:
        """Return both times in one line."""
        ours, loop = seconds_in_words(self.treefold_s), seconds_in_words(self.loop_s)
        return f"treefold sums {self.what} in {ours}; a NumPy loop takes {loop}, {self.ratio:.1f} times as long"


def measure_speed(
    ops: CrossDeviceOps, *, devices: int, clock: Callable[[], float], shapes: Sequence[tuple[int, ...]] = ()
) -> Speed:
    """Return the speed of ``ops`` beside the loop; ``shapes`` are by default those of a ResNet-50.

    Both sum in place and take turns, so that what else the machine does meets both. Replica r is full of 2**r, and
    every sum is looked at: a lost replica would be the fastest of all.
    """
    shapes = tuple(shapes) or resnet50()
    replicas = [[np.empty(shape, np.float32) for shape in shapes] for _ in range(devices)]
    value = PerReplica(replicas, devices=tuple(f"cpu:{index}" for index in range(devices)))
    ways: tuple[Callable[[], object], ...] = (
        lambda: ops.reduce(ReduceOp.SUM, value, destinations=value, out=value),
        lambda: _loop(replicas),
    )
    seconds: tuple[list[float], ...] = ([], [])
    for _ in range(_ROUNDS):
        for way, found in zip(ways, seconds, strict=True):
            found.append(_time(way, replicas, clock))
    nbytes = sum(array.nbytes for array in replicas[0])
    return Speed(devices, len(shapes), nbytes, *map(statistics.median, seconds))


def _time(way: Callable[[], object], replicas: Sequence[Gradients], clock: Callable[[], float]) -> float:
    for number, arrays in enumerate(replicas):
        for array in arrays:
            array.fill(2**number)
    begin = clock()
    way()
    seconds = clock() - begin
    assert all((array == 2 ** len(replicas) - 1).all() for arrays in replicas for array in arrays)  # noqa: S101
    return seconds


def _loop(replicas: Sequence[Gradients]) -> None:
    """Sum in place, array by array, as one would without treefold."""
    for first, *others in zip(*replicas, strict=True):
        for other in others:
            np.add(first, other, out=first)
        for other in others:
            other[...] = first
