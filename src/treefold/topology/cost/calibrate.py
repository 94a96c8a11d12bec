"""Fits t = alpha + beta·nbytes to measured copies over a link, robust against outliers, and refines machines by it.

Errors go one way: an interrupted copy takes longer, and none takes less than it must. A mean or least squares would
follow such outliers. The median of the slopes between all pairs of samples (Theil 1950, Sen 1968) stays right as long
as fewer than 1 − 1/√2, or 29 %, of the samples are wrong: then most pairs consist of two right ones.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from treefold.devices import canonical_device
from treefold.errors import SimulationError, TopologyError
from treefold.errors.words import counted
from treefold.topology.cost.routes import alternatives
from treefold.topology.graph import Link, Node, Topology

_MOST_PAIRS = 1000  # more samples are thinned to this many, because their pairs grow with the square
_ROUNDS = 20

Sample = tuple[float, float]  # bytes, seconds
Array = npt.NDArray[np.float64]
#: For a directed pair of devices: bytes per second of a large copy, and seconds before the first byte arrives.
Measured = Mapping[tuple[str, str], tuple[float, float]]


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


def refine(topology: Topology, measured: Measured) -> Topology:
    """Return the machine with the bandwidths and latencies measured by copies between its devices, one at a time.

    The bandwidth of a copy is a lower bound for every link on its route, and its latency is the sum of theirs. A link
    therefore gets the bandwidth of the fastest copy across it, and an equal part of the smallest latency. Links keep
    their values if no measured copy crossed them, or only copies of pairs with several routes or through other devices.
    ``treefold.topology.cost.fit_links`` and ``treefold.verify_links`` return such measurements.

    Raises:
        TopologyError: a pair of devices that the machine does not have.

    """
    widths: dict[tuple[str, str], float] = {}
    alphas: dict[tuple[str, str], float] = {}
    for (source, target), (bytes_per_s, alpha_s) in measured.items():
        ends = canonical_device(source), canonical_device(target)
        strangers = [device for device in ends if topology.kinds.get(device) != "device"]
        if strangers:
            raise TopologyError.strangers(strangers, topology.devices)
        routes = alternatives(topology, *ends)
        # Several routes share a copy in unknown parts, and a device that forwards adds its own time: neither says
        # anything of a single link.
        if len(routes) != 1 or any(topology.kinds[node] == "device" for node in routes[0][1:-1]):
            continue
        links = list(itertools.pairwise(routes[0]))
        for link in links:
            widths[link] = max(widths.get(link, 0.0), bytes_per_s)
            # Latency can only be added by other links, so the smallest share is the closest to this link's own.
            alphas[link] = min(alphas.get(link, float("inf")), alpha_s / len(links))
    # Between two nodes with links of two kinds, nobody knows which of them the copy took.
    seen = {ends for ends, kinds in _kinds(topology).items() if len(kinds) == 1} & set(widths)
    links_now = tuple(
        replace(link, bytes_per_s=widths[ends], alpha_s=alphas[ends]) if ends in seen else link
        for link in topology.links
        for ends in [(link.source, link.target)]
    )
    note = f"{len(seen)} of {len(topology.links)} directed links are as measured between devices."
    return replace(topology, links=links_now, notes=(*topology.notes, note))


def from_copies(devices: Sequence[str], measured: Measured) -> Topology:
    """Return a machine that agrees with copies between these devices, each measured alone, if nothing else is known.

    Each pair has a link with the bandwidth of its copy, and each device a port with the bandwidth of its fastest copy.
    Copies one at a time cannot show what several share beyond that, such as a link between sockets. ``measured`` has
    every ordered pair.

    >>> pairs = {("gpu:0", "gpu:1"): (24e9, 5e-6), ("gpu:1", "gpu:0"): (20e9, 5e-6)}
    >>> float(from_copies(["gpu:0", "gpu:1"], pairs).capacity("out of gpu:0", "into gpu:1"))
    24000000000.0
    """
    links = []
    for device in devices:
        out = max(width for (source, _), (width, _) in measured.items() if source == device)
        into = max(width for (_, target), (width, _) in measured.items() if target == device)
        links += [Link(device, f"out of {device}", "", out, 0.0), Link(f"into {device}", device, "", into, 0.0)]
    links += [
        Link(f"out of {source}", f"into {target}", "", width, alpha_s)
        for (source, target), (width, alpha_s) in measured.items()
    ]
    nodes = [Node(device, "device") for device in devices]
    nodes += [Node(f"{side} {device}", "switch") for device in devices for side in ("out of", "into")]
    note = "Links are as measured between each two devices, and a device's port is as wide as its widest link."
    return Topology("measured links", tuple(nodes), tuple(links), (note,))


def _kinds(topology: Topology) -> dict[tuple[str, str], set[str]]:
    found: dict[tuple[str, str], set[str]] = {}
    for link in topology.links:
        found.setdefault((link.source, link.target), set()).add(link.kind)
    return found
