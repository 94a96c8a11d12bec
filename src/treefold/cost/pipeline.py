"""A pipeline of lanes, run by the native clock where it is there, else by the one in Python: the same times."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from treefold.cost.clock import Clock
from treefold.cost.lanes import Lane, Needs

try:
    from treefold._native import run_pipeline

    HAS_NATIVE = True
except ImportError:  # a pure-Python installation: right, but slower
    HAS_NATIVE = False


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
        self.lanes_of: list[list[int]] = [[] for _ in needs]
        for number, lane in enumerate(lanes):
            self.lanes_of[lane.task].append(number)
        if HAS_NATIVE:
            self.starts, self.stops = _run_natively(lanes, needs, capacities, num_chunks)
        else:
            clock = Clock(lanes, needs, capacities, num_chunks)
            self.starts, self.stops = clock.starts, clock.stops
        self.now = max((stops[-1] for stops in self.stops), default=0.0)


def _run_natively(
    lanes: Sequence[Lane], needs: Sequence[Needs], capacities: Sequence[float], num_chunks: int
) -> tuple[list[list[float]], list[list[float]]]:
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
    return times[0].tolist(), times[1].tolist()


def _starts(lengths: Sequence[int]) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array([0, *itertools.accumulate(lengths)], np.int32)
