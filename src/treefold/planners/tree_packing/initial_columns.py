"""Where column generation begins: shallow trees, and on larger machines trees that give way to each other."""

from __future__ import annotations

import numpy as np

from treefold.planners.tree_packing.columns import Column, Oracle, Start, mirrored
from treefold.planners.tree_packing.network import Network
from treefold.planners.tree_packing.spanning import cheapest_paths

_SMALL = 16  # devices up to which the linear program alone is as quick
_ROUNDS_PER_DEVICE, _MOST_ROUNDS = 6, 400
_STEEPNESS = 0.3


def start_of(network: Network, oracle: Oracle, *, is_cheap: bool) -> Start:
    """Return what to begin with; ``is_cheap``: the oracle is asked for some hundred trees more."""
    shallow = _fans(network)
    if len(network.devices) <= _SMALL or not is_cheap:
        return Start(shallow, 1 / network.width)
    played = _played(network, oracle)
    return Start((*shallow, *played.columns), played.prices)


def _fans(network: Network) -> tuple[Column, ...]:
    """Return the tree of cheapest paths from every device: shallow, and on meshes and switches all that is needed."""
    routes = network.routes(1 / network.width)
    cost = routes.cost_there_and_back
    found = [cheapest_paths(cost, root) for root in range(len(cost))]
    return tuple(mirrored(network, routes, pairs) for pairs in found if len(pairs) == len(cost) - 1)


def _played(network: Network, oracle: Oracle) -> Start:
    """Return trees that each answer to the load of those before, and the prices that bounded best (Garg, Könemann).

    A row's price grows exponentially with its load. A few rounds bring the trees that an optimum is made of; the linear
    program then weighs them.
    """
    load = np.zeros(len(network.width))
    columns: dict[tuple[float, ...], Column] = {}
    best, bound = 1 / network.width, np.inf
    for _ in range(min(_ROUNDS_PER_DEVICE * len(network.devices), _MOST_ROUNDS)):
        fullness = load / network.width
        prices = np.exp((fullness - fullness.max()) * _STEEPNESS) / network.width
        cheapest = oracle(prices)[0]
        if network.width @ prices / cheapest.cost < bound:
            best, bound = prices, network.width @ prices / cheapest.cost
        column = cheapest.column()
        columns.setdefault(tuple(column.loads), column)
        load += column.loads / (column.loads / network.width).max()
    return Start(tuple(columns.values()), best)
