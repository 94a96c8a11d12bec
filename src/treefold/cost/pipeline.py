"""A pipeline of lanes, run by the native clock where it is there, else by the one in Python: the same times."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from treefold.compiled import HAS_NATIVE
from treefold.cost.clock import Clock
from treefold.cost.lanes import Lane, Needs

if HAS_NATIVE:
    from treefold._native import run_pipeline

Times = npt.NDArray[np.float64]  # starts and stops, by lane and chunk


class Pipeline:
    """Lanes run to their end.

    ``starts[l][c]`` and ``stops[l][c]``: the seconds of chunk c on lane l; ``now``: when the last one stopped;
    ``lanes_of[t]``: the lanes of task t.
    """

    def __init__(
        self, lanes: Sequence[Lane], needs: Sequence[Needs], capacities: Sequence[float], num_chunks: int
    ) -> None:
        """Run them. ``needs[t]``: what task t waits for; ``capacities``: bytes per second of every resource."""
        self.lanes, self.needs, self.num_chunks = lanes, needs, num_chunks
        if HAS_NATIVE:
            self._times = _run_natively(lanes, needs, capacities, num_chunks)
        else:
            clock = Clock(lanes, needs, capacities, num_chunks)
            self._times = np.array([clock.starts, clock.stops]).reshape(2, len(lanes), num_chunks)
        self.now = float(self._times[1, :, -1].max(initial=0.0))

    # Lists, which are slow to make and quick to read, are made for timelines; a price has no need of them.
    @cached_property
    def starts(self) -> list[list[float]]:
        """When each chunk started."""
        found: list[list[float]] = self._times[0].tolist()
        return found

    @cached_property
    def stops(self) -> list[list[float]]:
        """When each chunk stopped."""
        found: list[list[float]] = self._times[1].tolist()
        return found

    @cached_property
    def lanes_of(self) -> list[list[int]]:
        """The lanes of every task."""
        found: list[list[int]] = [[] for _ in self.needs]
        for number, lane in enumerate(self.lanes):
            found[lane.task].append(number)
        return found


def _run_natively(lanes: Sequence[Lane], needs: Sequence[Needs], capacities: Sequence[float], num_chunks: int) -> Times:
    pairs = [pair for need in needs for pair in need]
    counts = np.array([count for _, count in pairs], np.int32).reshape(len(pairs), num_chunks)
    times = np.full((2, len(lanes), num_chunks), np.nan)
    run_pipeline(
        np.array([lane.task for lane in lanes], np.int32),
        np.array([lane.nbytes for lane in lanes], np.float64),
        np.array([lane.alpha_s for lane in lanes], np.float64),
        _starts([len(lane.resources) for lane in lanes]),
        np.array([resource for lane in lanes for resource in lane.resources], np.int32),
        _starts([len(need) for need in needs]),
        np.array([task for task, _ in pairs], np.int32),
        counts,
        np.array(capacities, np.float64),
        times[0],
        times[1],
    )
    return times


def _starts(lengths: Sequence[int]) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array([0, *itertools.accumulate(lengths)], np.int32)
