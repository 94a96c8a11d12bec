"""Exact shares and prices from the floats of the linear program, so that loads and bounds can be checked exactly."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from treefold.planners.tree_packing.columns import Oracle
from treefold.planners.tree_packing.network import Array, Network
from treefold.planners.tree_packing.packing import Certificate
from treefold.topology.graph import reached_from

_DENOMINATORS = (64, 1024, 10_000)  # tried in turn: the corners of small programs have small denominators
_FINE_SHARE, _FINE_PRICE = 2**32, 2**28  # used if none fits; sums stay exact in 64 bits and in floats
_NEGLIGIBLE = 1e-9
_NEARLY_FULL = 1e-7
_MOST_SOLVED_FOR = 40  # up to this many trees, the exact weights are solved for
_LARGEST_WEIGHT = 2**44

Counts = npt.NDArray[np.int64]


def exact_shares(network: Network, loads: Array, rates: Array) -> tuple[list[int], Fraction]:
    """Return whole weights of trees in the ratio of ``rates`` and the exact bytes per second that they reach.

    ``loads[r, t]``: how often tree t crosses row r.
    """
    shares = rates / rates.sum()
    shares[shares < _NEGLIGIBLE] = 0
    counts = [_rationalised(shares, most, _FINE_SHARE) for most in _DENOMINATORS]
    counts += [_corner(network, loads, shares), np.floor(shares * _FINE_SHARE).astype(np.int64)]
    found = [(reached(network, loads, weights), weights) for weights in counts if weights is not None]
    algbw, weights = max(found, key=lambda item: item[0])
    common = math.gcd(*weights.tolist())
    return [weight // common for weight in weights.tolist()], algbw


def _corner(network: Network, loads: Array, shares: Array) -> Counts | None:
    """Return exact weights by solving the equations of the full rows; None if no unique, moderate solution is found.

    The optimum of a linear program is a corner: its full rows determine it. The equations are solved by Gauss-Jordan
    elimination in fractions.
    """
    used = np.flatnonzero(shares)
    per_width = loads @ shares / network.width
    full = np.flatnonzero(per_width > per_width.max() * (1 - _NEARLY_FULL))
    if len(used) > _MOST_SOLVED_FOR or len(full) > 4 * _MOST_SOLVED_FOR:
        return None
    capacities = [network.capacities[row] / network.widest for row in full]
    table = [[Fraction(int(n)) for n in loads[row, used]] + [c] for row, c in zip(full, capacities, strict=True)]
    for column in range(len(used)):
        # Any pivot that is not 0 will do: fractions lose no digits, so there is no best one.
        pivot = next((line for line in table[column:] if line[column]), None)
        if pivot is None:
            return None
        table.remove(pivot)
        pivot = [number / pivot[column] for number in pivot]
        table = [
            [a - line[column] * b for a, b in zip(line, pivot, strict=True)] if line[column] else line for line in table
        ]
        table.insert(column, pivot)
    weights = [line[-1] for line in table[: len(used)]]
    common = math.lcm(*(weight.denominator for weight in weights))
    whole = [int(weight * common) for weight in weights]
    if min(whole) < 0 or max(whole) > _LARGEST_WEIGHT:
        return None
    counts = np.zeros(len(shares), np.int64)
    counts[used] = whole
    return counts


def reached(network: Network, loads: Array, weights: Counts) -> Fraction:
    """Return the exact bytes per second of trees with these weights; the row of the highest relative load limits it."""
    per_row = loads.astype(np.int64) @ weights
    total = int(weights.sum())
    # A set, because rows of regular machines are mostly alike, and fractions are slow.
    full = {(capacity, int(load)) for capacity, load in zip(network.capacities, per_row, strict=True) if load}
    return total * min(capacity / load for capacity, load in full)


def certify(network: Network, oracle: Oracle, prices: Array, *, is_directed: bool) -> Certificate:
    """Return the best exact certificate from these prices, or from prices in inverse proportion to the widths.

    Any whole prices prove a bound, so rounding can only make it weaker, never wrong. Several roundings are tried, and
    the lowest bound is kept.
    """
    candidates = list[Counts | None]()
    for some in (prices, 1 / network.width):
        scaled = some / some.max()
        scaled[scaled < _NEGLIGIBLE] = 0
        candidates += [_rationalised(scaled, most, _FINE_PRICE) for most in _DENOMINATORS]
        # A fine grid always fits: it stands for prices that are no small fractions.
        candidates.append(np.rint(scaled * _FINE_PRICE).astype(np.int64))
    found = []
    for whole in candidates:
        if whole is not None:
            cost = round(oracle(whole.astype(float))[0].cost)
            earned = sum((c * int(price) for c, price in zip(network.capacities, whole, strict=True)), Fraction(0))
            if cost:
                found.append((earned / cost, cost, whole))
    bound, cost, whole = min(found, key=lambda item: item[0])
    common = math.gcd(*whole.tolist())
    prices_of_links = tuple(
        (source, target, int(whole[row]) // common) for (source, target), row in network.row_of.items() if whole[row]
    )
    parts = _parts(network, whole.astype(float))
    # On symmetric machines a row stands for both directions and counts once; the tree crosses both links.
    cost = (2 if network.is_symmetric else 1) * (cost // common)
    return Certificate(prices_of_links, cost, bound, parts, _is_partition(network, parts, bound), is_directed)


def _rationalised(values: Array, most: int, largest: int) -> Counts | None:
    """Return whole numbers in the ratio of ``values``; None if their common denominator exceeds ``largest``."""
    fractions = [Fraction(float(value)).limit_denominator(most) for value in values]
    common = math.lcm(*(fraction.denominator for fraction in fractions))
    if common > largest:
        return None
    whole = np.array([int(fraction * common) for fraction in fractions], np.int64)
    return whole if whole.any() else None


def _parts(network: Network, prices: Array) -> tuple[tuple[str, ...], ...]:
    """Return the groups of devices that are connected by routes of price 0."""
    free = network.routes(prices).cost == 0
    parts: list[list[int]] = []
    left = set(range(len(network.devices)))
    while left:
        parts.append(sorted(reached_from([min(left)], lambda i: np.flatnonzero(free[i] | free[:, i]).tolist())))
        left -= set(parts[-1])
    return tuple(tuple(network.devices[device] for device in part) for part in parts)


def _is_partition(network: Network, parts: Sequence[Sequence[str]], bound: Fraction) -> bool:
    """Tell whether the capacity of direct links between the parts, over their number less one, is the bound."""
    if not network.is_symmetric or len(parts) < 2:  # noqa: PLR2004 - nothing lies between fewer
        return False
    part_of = {device: number for number, part in enumerate(parts) for device in part}
    across = Fraction(0)
    for (source, target), row in network.row_of.items():
        if source not in part_of or target not in part_of:
            return False
        if part_of[source] != part_of[target]:
            across += network.capacities[row]
    return across / 2 / (len(parts) - 1) == bound
