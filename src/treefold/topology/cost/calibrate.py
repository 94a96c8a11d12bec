"""Fits t = alpha + beta·nbytes to measured copies over a link, robust against outliers.

Errors go one way: an interrupted copy takes longer, and none takes less than it must. A mean or least squares would
follow such outliers. The median of the slopes between all pairs of samples (Theil 1950, Sen 1968) stays right as long
as fewer than 1 − 1/√2, or 29 %, of the samples are wrong: then most pairs consist of two right ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from treefold.errors import SimulationError
from treefold.errors.words import counted

_MOST_PAIRS = 1000  # more samples are thinned to this many, because their pairs grow with the square
_ROUNDS = 20

Sample = tuple[float, float]  # bytes, seconds
Array = npt.NDArray[np.float64]


class LinkFit(NamedTuple):
    """The fit of one link, as ``refine`` reads it: its bandwidth, which is 1/beta, and its alpha."""

    bytes_per_s: float
    alpha_s: float


def fit_link(samples: Iterable[Sample]) -> LinkFit:
    """Return alpha and beta of a link from (bytes, seconds) of copies over it alone.

    Slopes are weighted by the distance between their sizes. The errors are assumed to grow with the time, so each
    sample's error counts relative to its time. A negative alpha becomes 0.

    Raises:
        SimulationError: fewer than two different sizes, a number that is not finite and ≥ 0, or larger copies that take
            no longer.

    >>> fit = fit_link([(0, 2e-6), (1e6, 42e-6), (2e6, 82e-6), (3e6, 900e-6), (4e6, 162e-6)])
    >>> round(fit.alpha_s * 1e6, 3), round(fit.bytes_per_s / 1e9, 3)
    (2.0, 25.0)
    """
    sizes, seconds = _columns(samples)
    if len(np.unique(sizes)) < 2:  # noqa: PLR2004 - a line needs two points
        raise SimulationError(
            f"{counted(len(sizes), 'sample')} of one size or none say nothing of latency and bandwidth. Measure copies "
            "of at least two sizes, a few bytes and some megabytes."
        )
    alpha, beta = 0.0, _slope(sizes, seconds, np.ones(len(sizes)))
    for _ in range(_ROUNDS):
        # Weight each sample by 1 over the time that the current fit predicts for it (iterative reweighting).
        # Not below a millionth of the longest time: a copy of no bytes with alpha 0 would weigh infinitely much.
        expected = np.maximum(alpha + beta * sizes, max(float(seconds.max()), 1e-12) * 1e-6)
        before, beta = beta, _slope(sizes, seconds, 1 / expected)
        alpha = max(_weighted_median(seconds - beta * sizes, 1 / expected), 0.0)
        if not beta > 0:
            raise SimulationError(
                "Larger copies take no longer than small ones, so no bandwidth follows. Wait for each copy to end "
                "before the clock is read, or measure larger ones."
            )
        # Medians are slopes of samples: once the weights settle, the same pair is chosen again, and nothing moves any
        # more.
        if abs(beta - before) <= 1e-12 * beta:
            break
    return LinkFit(1 / beta, alpha)


def fit_links(samples: Mapping[tuple[str, str], Sequence[Sample]]) -> dict[tuple[str, str], LinkFit]:
    """Return the fit of every link, by its ends, (sender, receiver)."""
    return {ends: fit_link(measured) for ends, measured in samples.items()}


def _columns(samples: Iterable[Sample]) -> tuple[Array, Array]:
    pairs = [(float(nbytes), float(seconds)) for nbytes, seconds in samples]
    for nbytes, seconds in pairs:
        if not all(math.isfinite(number) and number >= 0 for number in (nbytes, seconds)):
            raise SimulationError(
                f"A copy of {nbytes!r} bytes in {seconds!r} seconds cannot be. Both are finite numbers, 0 or more."
            )
    # Every k-th sample, not the first 1,000: a sweep over sizes is mostly in order, and its large sizes come last.
    table = np.array(pairs[:: -(-len(pairs) // _MOST_PAIRS) or 1], float).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def _slope(sizes: Array, seconds: Array, trust: Array) -> float:
    first, second = np.triu_indices(len(sizes), 1)
    apart = sizes[second] - sizes[first]
    differ = apart != 0
    first, second, apart = first[differ], second[differ], apart[differ]
    slopes = (seconds[second] - seconds[first]) / apart
    # The error of a slope shrinks with the distance of its sizes, and grows with that of its less exact sample.
    return _weighted_median(slopes, np.abs(apart) * np.minimum(trust[first], trust[second]))


def _weighted_median(values: Array, weights: Array) -> float:
    order = np.argsort(values)
    below = np.cumsum(weights[order])
    middle = below[-1] / 2
    index = int(np.searchsorted(below, middle))
    # Where half of the weight lies exactly on a border, the median is between two values, as for an even count.
    if index + 1 < len(values) and below[index] <= middle * (1 + 1e-12):
        return float(values[order[index]] + values[order[index + 1]]) / 2
    return float(values[order[index]])
