"""Exact shares and prices from the floats of the linear program, so that loads and bounds can be checked exactly."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from treefold.topology.graph import joined_groups
from treefold.topology.planning.tree_packing.columns import Oracle
from treefold.topology.planning.tree_packing.network import Array, Network
from treefold.topology.planning.tree_packing.packing import Certificate

_DENOMINATORS = (64, 1024, 10_000)  # Tried in turn: the corners of small programs have small denominators.
_FINE_SHARE, _FINE_PRICE = 2**32, 2**28  # Used if none fits; sums stay exact in 64 bits and in floats.
# Shares and prices this small are rounding errors of the solver; kept, they would each become a tree or a link.
_NEGLIGIBLE = 1e-9
# HiGHS keeps constraints to 1e-7, so a row that is full at the corner may lack this part in its solution.
_NEARLY_FULL = 1e-7
_MOST_SOLVED_FOR = 40  # The most trees for which the exact weights are solved.
# The loads of a row are summed in 64 bits: 40 weights of 2**44, each crossing the row up to 2**13 times, fit.
_LARGEST_WEIGHT = 2**44

Counts = npt.NDArray[np.int64]


def exact_shares(network: Network, loads: Array, rates: Array) -> tuple[list[int], Fraction]:
    """Return whole weights of trees in the ratio of ``rates`` and the exact bytes per second that they reach.

    ``loads[r, t]``: how often tree t crosses row r.
    """
    shares = rates / rates.sum()
    shares[shares < _NEGLIGIBLE] = 0
    # Whatever the weights, scaling makes them feasible, and ``reached`` is the exact rate at which they are. A bad
    # guess is therefore slow, never wrong, and the fastest of several guesses can be taken without knowing the true
    # one.
    counts = [_rationalised(shares, most, _FINE_SHARE) for most in _DENOMINATORS]
    counts += [_corner(network, loads, shares), np.floor(shares * _FINE_SHARE).astype(np.int64)]
    found = [(reached(network, loads, weights), weights) for weights in counts if weights is not None]
    algbw, weights = max(found, key=lambda item: item[0])
    # One common factor carries no meaning, and would make every share a larger fraction.
    common = math.gcd(*weights.tolist())
    return [weight // common for weight in weights.tolist()], algbw


def _corner(network: Network, loads: Array, shares: Array) -> Counts | None:
    """Return exact weights by solving the equations of the full rows; None if no unique, moderate solution is found.

    The optimum of a linear program is a corner, which its full rows determine. The equations are solved by Gauss-Jordan
    elimination in fractions.
    """
    # Basic variables alone: the others are 0 at the corner, which leaves as many unknowns as trees that carry anything.
    used = np.flatnonzero(shares)
    per_width = loads @ shares / network.width
    full = np.flatnonzero(per_width > per_width.max() * (1 - _NEARLY_FULL))
    # Exact elimination is cubic, and its fractions grow with every step.
    if len(used) > _MOST_SOLVED_FOR or len(full) > 4 * _MOST_SOLVED_FOR:
        return None
    capacities = [network.capacities[row] / network.widest for row in full]
    table = [[Fraction(int(n)) for n in loads[row, used]] + [c] for row, c in zip(full, capacities, strict=True)]
    for column in range(len(used)):
        # Any pivot that is not 0 will do: fractions lose no digits, so there is no best one.
        # A degenerate corner has more full rows than unknowns. Rows beyond the pivots are not checked for consistency,
        # because the solver's tolerance may have let one in; ``reached`` judges the outcome, as it does every guess.
        pivot = next((line for line in table[column:] if line[column]), None)
        if pivot is None:
            return None
        table.remove(pivot)
        pivot = [number / pivot[column] if number else number for number in pivot]
        # Trees cross few rows, so most numbers are 0, and arithmetic on fractions is slow.
        table = [_reduced(line, pivot, line[column]) if line[column] else line for line in table]
        table.insert(column, pivot)
    weights = [line[-1] for line in table[: len(used)]]
    common = math.lcm(*(weight.denominator for weight in weights))
    whole = [int(weight * common) for weight in weights]
    # A weight below 0 means that these rows do not determine a corner of the feasible region.
    if min(whole) < 0 or max(whole) > _LARGEST_WEIGHT:
        return None
    counts = np.zeros(len(shares), np.int64)
    counts[used] = whole
    return counts


def _reduced(line: Sequence[Fraction], pivot: Sequence[Fraction], times: Fraction) -> list[Fraction]:
    """Return a line less a multiple of the pivot."""
    return [a - times * b if b else a for a, b in zip(line, pivot, strict=True)]


def reached(network: Network, loads: Array, weights: Counts) -> Fraction:
    """Return the exact bytes per second of trees with these weights, which the fullest row limits."""
    # Loads are whole numbers held as floats, so this loses nothing.
    per_row = loads.astype(np.int64) @ weights
    total = int(weights.sum())
    # A set, because rows of regular machines are mostly alike, and fractions are slow.
    full = {(capacity, int(load)) for capacity, load in zip(network.capacities, per_row, strict=True) if load}
    # Weights w at a rate λ·w fit while λ·load ≤ capacity on every row; all packs together then carry λ·Σ w.
    return total * min(capacity / load for capacity, load in full)


def certify(network: Network, oracle: Oracle, prices: Array, *, is_directed: bool) -> Certificate:
    """Return the best exact certificate from these prices, or from prices in inverse proportion to the widths.

    Any whole prices prove a bound, so rounding can make it weaker but never wrong. Several roundings are tried, and the
    lowest bound is kept.
    """
    candidates = list[Counts | None]()
    # The second ones need no solver, and are optimal where all links are equally wide and equally useful, as in a ring.
    for some in (prices, 1 / network.width):
        scaled = some / some.max()
        scaled[scaled < _NEGLIGIBLE] = 0
        candidates += [_rationalised(scaled, most, _FINE_PRICE) for most in _DENOMINATORS]
        # A fine grid always fits: it stands for prices that are no small fractions.
        candidates.append(np.rint(scaled * _FINE_PRICE).astype(np.int64))
    found = []
    for whole in candidates:
        if whole is not None:
            # Whole numbers below 2**53 are exact as floats, and so is their sum: rounding only changes the type.
            cost = round(oracle(whole.astype(float))[0].cost)
            earned = sum((c * int(price) for c, price in zip(network.capacities, whole, strict=True)), Fraction(0))
            # Prices that leave a tree free prove nothing: rounding may have cut off the last price on its way.
            if cost:
                found.append((earned / cost, cost, whole))
    bound, cost, whole = min(found, key=lambda item: item[0])
    # Prices in lowest terms are the ones a reader can check by hand; every cost is a multiple of the factor, too.
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
    # The closest fraction of a small denominator is the true value, if that belongs to a small corner. Two fractions of
    # denominators up to d differ by 1/d² at least, 2e-4 for the first bound that is tried: far more than the solver's
    # error.
    fractions = [Fraction(float(value)).limit_denominator(most) for value in values]
    common = math.lcm(*(fraction.denominator for fraction in fractions))
    if common > largest:
        return None
    whole = np.array([int(fraction * common) for fraction in fractions], np.int64)
    # All 0: the denominators are too small for these values, and weights or prices of 0 mean nothing.
    return whole if whole.any() else None


def _parts(network: Network, prices: Array) -> tuple[tuple[str, ...], ...]:
    """Return the groups of devices that are connected by routes of price 0."""
    # A partition proves its bound by prices of 1 between its parts and 0 within them, so the parts are what free routes
    # join.
    free = network.routes(prices).cost == 0
    parts = joined_groups(range(len(network.devices)), lambda i: np.flatnonzero(free[i] | free[:, i]).tolist())
    return tuple(tuple(network.devices[device] for device in part) for part in parts)


def _is_partition(network: Network, parts: Sequence[Sequence[str]], bound: Fraction) -> bool:
    """Tell whether the bound is the capacity of direct links between the parts over their number less one."""
    if not network.is_symmetric or len(parts) < 2:  # noqa: PLR2004 - nothing lies between fewer
        return False
    # The theorem of Tutte and Nash-Williams knows no switches: there, only the prices prove the bound.
    part_of = {device: number for number, part in enumerate(parts) for device in part}
    across = Fraction(0)
    for (source, target), row in network.row_of.items():
        if source not in part_of or target not in part_of:
            return False
        if part_of[source] != part_of[target]:
            across += network.capacities[row]
    # A tree crosses between k parts k − 1 times at least, which is the whole proof. Exact: these are fractions.
    return across / 2 / (len(parts) - 1) == bound
