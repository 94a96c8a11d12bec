"""The columns that column generation begins with: shallow trees, and on large machines trees that avoid each other."""

from __future__ import annotations

import numpy as np

from treefold.topology.planning.tree_packing.columns import Column, InitialColumns, Oracle, mirrored
from treefold.topology.planning.tree_packing.network import Network
from treefold.topology.planning.tree_packing.spanning import cheapest_paths

_SMALL = 16  # up to this many devices the linear program alone takes no longer
_ROUNDS_PER_DEVICE, _MOST_ROUNDS = 6, 400
# The ε of Garg and Könemann: smaller values come closer to the optimum, and need more rounds. It need not come close,
# because the linear program weighs the trees again.
_STEEPNESS = 0.3


def initial_columns(network: Network, oracle: Oracle) -> InitialColumns:
    """Return the columns and prices to begin with."""
    shallow = _cheapest_path_trees(network)
    if len(network.devices) <= _SMALL:
        return InitialColumns(shallow, 1 / network.width)
    weighted = _multiplicative_weights(network, oracle)
    return InitialColumns((*shallow, *weighted.columns), weighted.prices)


def _cheapest_path_trees(network: Network) -> tuple[Column, ...]:
    """Return the tree of cheapest paths from every device.

    These trees are shallow. On meshes and behind switches the optimum needs no others.
    """
    routes = network.routes(1 / network.width)
    cost = routes.cost_there_and_back
    # A root from which some device cannot be reached both ways has no tree.
    found = [cheapest_paths(cost, root) for root in range(len(cost))]
    return tuple(mirrored(network, routes, pairs) for pairs in found if len(pairs) == len(cost) - 1)


def _multiplicative_weights(network: Network, oracle: Oracle) -> InitialColumns:
    """Return trees found by multiplicative weights, and the prices of the best bound (Garg and Könemann 2007).

    Each tree is the cheapest at prices that grow exponentially with the load of the trees before it. A few rounds find
    the trees that an optimum is made of; the linear program then weighs them.
    """
    load = np.zeros(len(network.width))
    columns: dict[tuple[float, ...], Column] = {}
    best, bound = 1 / network.width, np.inf
    for _ in range(min(_ROUNDS_PER_DEVICE * len(network.devices), _MOST_ROUNDS)):
        fullness = load / network.width
        # Less the fullest, so that the exponential does not overflow: only the ratios of prices count.
        prices = np.exp((fullness - fullness.max()) * _STEEPNESS) / network.width
        cheapest = oracle(prices)[0]
        # Every round's prices prove a bound (weak duality, as in ``columns``); the best of them start the
        # stabilisation.
        if network.width @ prices / cheapest.cost < bound:
            best, bound = prices, network.width @ prices / cheapest.cost
        column = cheapest.column()
        # Trees with equal loads are interchangeable in the program, so one of them is enough.
        columns.setdefault(tuple(column.loads), column)
        # The tree carries as much as fills its narrowest row, and loads its others in proportion.
        load += column.loads / (column.loads / network.width).max()
    return InitialColumns(tuple(columns.values()), best)
