"""From measured copies to what a link costs: t = alpha + beta·nbytes, whatever a few samples say.

Clocks lie upwards: a copy that was interrupted took longer, none took less than it takes. Neither a mean nor least
squares survives that; the median of all slopes does (Theil and Sen), as long as fewer than 29 % of the samples are
wrong.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from treefold.errors import SimulationError

_MOST_PAIRS = 1000  # samples of one size beyond this many are thinned: pairs grow with their square
_ROUNDS = 20

Sample = tuple[float, float]  # bytes, seconds
Array = npt.NDArray[np.float64]


class LinkFit(NamedTuple):
    """What samples say of one link: its bandwidth, 1/beta, and its alpha; as ``refine`` reads it."""

    bytes_per_s: float
    alpha_s: float


def fit_link(samples: Iterable[Sample]) -> LinkFit:
    """Return alpha and beta of a link from (bytes, seconds) of copies over it alone.

    Slopes are weighted by how far apart their sizes are; the scatter is taken to grow with the time itself, so each
    sample's error counts in relation to it. A negative alpha is none.

    Raises:
        SimulationError: fewer than two different sizes, a number that is not finite and ≥ 0, or larger copies that take
            no longer.

    >>> fit = fit_link([(0, 2e-6), (1e6, 42e-6), (2e6, 82e-6), (3e6, 900e-6), (4e6, 162e-6)])
    >>> round(fit.alpha_s * 1e6, 3), round(fit.bytes_per_s / 1e9, 3)
    (2.0, 25.0)
    """
    sizes, seconds = _columns(samples)
    if len(np.unique(sizes)) < 2:  # noqa: PLR2004 - a line needs two points
        raise SimulationError.one_size(len(sizes))
    alpha, beta = 0.0, _slope(sizes, seconds, np.ones(len(sizes)))
    for _ in range(_ROUNDS):
        # What a sample's time should be is how far it can be trusted: errors grow with the time.
        expected = np.maximum(alpha + beta * sizes, max(float(seconds.max()), 1e-12) * 1e-6)
        before, beta = beta, _slope(sizes, seconds, 1 / expected)
        alpha = max(_weighted_median(seconds - beta * sizes, 1 / expected), 0.0)
        if not beta > 0:
            raise SimulationError.no_slope()
        if abs(beta - before) <= 1e-12 * beta:
            break
    return LinkFit(1 / beta, alpha)


def fit_links(samples: Mapping[tuple[str, str], Sequence[Sample]]) -> dict[tuple[str, str], LinkFit]:
    """Return the fit of every link, by its ends, (sender, receiver)."""
    return {ends: fit_link(measured) for ends, measured in samples.items()}


def _columns(samples: Iterable[Sample]) -> tuple[Array, Array]:
    pairs = [(float(nbytes), float(seconds)) for nbytes, seconds in samples]
    for pair in pairs:
        if not all(math.isfinite(number) and number >= 0 for number in pair):
            raise SimulationError.sample(*pair)
    table = np.array(pairs[:: -(-len(pairs) // _MOST_PAIRS) or 1], float).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def _slope(sizes: Array, seconds: Array, trust: Array) -> float:
    first, second = np.triu_indices(len(sizes), 1)
    apart = sizes[second] - sizes[first]
    differ = apart != 0
    first, second, apart = first[differ], second[differ], apart[differ]
    slopes = (seconds[second] - seconds[first]) / apart
    return _weighted_median(slopes, np.abs(apart) * np.minimum(trust[first], trust[second]))


def _weighted_median(values: Array, weights: Array) -> float:
    order = np.argsort(values)
    below = np.cumsum(weights[order])
    middle = below[-1] / 2
    index = int(np.searchsorted(below, middle))
    if index + 1 < len(values) and below[index] <= middle * (1 + 1e-12):
        return float(values[order[index]] + values[order[index + 1]]) / 2
    return float(values[order[index]])
