"""Times: treefold and baselines take turns, and their times become spreads and ratios.

Machines drift, because of other programs and other clock frequencies. Runners therefore take turns. A ratio is formed
within each round, and the median is that of the rounds' ratios.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

#: Makes a number of calls and returns the seconds that each took.
Runner = Callable[[int], Sequence[float]]

#: The seconds of every call, round by round.
Rounds = tuple[tuple[float, ...], ...]


#: Beside calls of this length, the time to wake sleeping threads does not show.
_LONG_S = 0.1


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of some numbers, their quartiles and their 99th percentile."""

    median: float
    low: float
    high: float
    p99: float

    @classmethod
    def of(cls, numbers: Sequence[float]) -> Spread:
        """Return the spread of at least one number.

        >>> Spread.of([4.0, 1.0, 2.0, 3.0, 5.0])
        Spread(median=3.0, low=2.0, high=4.0, p99=4.96)
        """
        return cls(*np.quantile(numbers, (0.5, 0.25, 0.75, 0.99)).tolist())


@dataclass(frozen=True, slots=True)
class Pace:
    """The number of calls of each runner: ``rounds`` times ``calls`` in a row, after ``warmup`` rounds."""

    rounds: int
    warmup: int
    calls: int = 1


def clocked(
    call: Callable[[], object],
    clock: Callable[[], float] = time.perf_counter,
    *,
    before: Callable[[], object] = lambda: None,
) -> Runner:
    """Return a runner that times ``call``; ``before`` runs before each call, outside its time."""

    def run(calls: int) -> list[float]:
        seconds = []
        for _ in range(calls):
            before()
            begin = clock()
            call()
            seconds.append(clock() - begin)
        return seconds

    return run


def interleave(
    runners: Mapping[str, Runner], pace: Pace, *, pause_s: float = 0.0, tick: Callable[[], object] = lambda: None
) -> dict[str, Rounds]:
    """Run all runners in turns and return their times; every other round goes in the opposite order.

    Args:
        runners: the calls by name.
        pace: rounds, and calls in a round.
        pause_s: seconds between runners, in which the threads of the one before fall asleep.
        tick: called after each turn.

    """
    times: dict[str, list[tuple[float, ...]]] = {name: [] for name in runners}
    is_long: dict[str, bool] = {}
    for number in range(-pace.warmup, pace.rounds):
        # The order alternates, so that no runner always inherits the caches and the clock frequency of the same one.
        names = list(runners)[:: 1 if number % 2 == 0 else -1]
        for name in names:
            if pause_s:
                time.sleep(pause_s)
            if pause_s and not is_long.get(name):
                runners[name](1)  # Threads wake up, and caches fill, outside the measured calls.
            seconds = tuple(runners[name](pace.calls))
            is_long[name] = min(seconds) > _LONG_S
            tick()
            if number >= 0:
                times[name].append(seconds)
    return {name: tuple(rounds) for name, rounds in times.items()}


def spread_of_calls(rounds: Rounds) -> Spread:
    """Return the spread of all calls of all rounds."""
    return Spread.of([seconds for calls in rounds for seconds in calls])


def spread_of_ratios(one: Rounds, other: Rounds) -> Spread:
    """Return the spread of one time over the other, each the median of its round.

    >>> spread_of_ratios(((2.0,), (4.0,)), ((1.0,), (2.0,))).median
    2.0
    """
    pairs = zip(one, other, strict=True)
    return Spread.of([statistics.median(above) / statistics.median(below) for above, below in pairs])


def calls_per_round(seconds: float, *, round_s: float = 0.004, most: int = 200) -> int:
    """Return the number of calls that make a round long in comparison with a change of runners."""
    return max(1, min(most, math.ceil(round_s / max(seconds, 1e-9))))
