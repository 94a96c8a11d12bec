"""The optimal packing of trees into a machine's links, with its proof; packs of equal size; the roots of trees."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np

from treefold.errors import TopologyError
from treefold.errors.words import short
from treefold.keyed import grouped
from treefold.topology.graph import Topology
from treefold.topology.planning.tree_packing.columns import (
    Column,
    InitialColumns,
    Oracle,
    Solution,
    directed_trees,
    initial_columns,
    load_scipy_optimize,
    mirrored_column,
    mirrored_trees,
    pack_trees,
    shallow_trees,
)
from treefold.topology.planning.tree_packing.exact import Counts, certify, exact_shares, reached
from treefold.topology.planning.tree_packing.network import Array, Network, Route
from treefold.topology.planning.tree_packing.packing import Certificate, SpanningTree, TreePacking
from treefold.topology.planning.tree_packing.symmetry import Shift, all_images, find_shifts, row_groups, row_map

_LARGE = 100  # above this many devices, symmetry is used
_MANY_ROWS = 300  # above this many rows (or 100 devices), without symmetry, planning stops at a gap of 1 % or early
_TOLERANCE, _TOLERANCE_OF_LARGE = 1e-9, 0.01
# By count, not by the clock: every process must find the same trees.
_MOST_ROUNDS, _MOST_ROUNDS_OF_LARGE = 300, 4
_MOST_ROWS_IN_ALL = 10_000  # of the programs that are solved for a machine of many rows
# Below this, the loss is that of rounding shares to a grid, and no reader could use it.
_LOSS_WORTH_A_NOTE = 1e-6
_CARRIES = 1e-9  # The least share of a tree; less is a rounding error of the solver.
_MOST_DIRECTED = 48  # The most devices for which asymmetric trees have separate edges up and down.
_LARGEST = 100_000  # The most entries of the pool's loads in the integer program.
# The search is bounded by nodes, not by seconds: on a busy machine a time limit would give other, worse packings.
_MOST_NODES, _CLOSE = 400, 1e-6
# Each edge of a balanced tree costs a search of all routes, so there is a bound on edges, not on trees.
_MOST_EDGES, _POWER = 1024, 8
_SHAKEN, _SHAKES = 100, (0.2, 1.0)  # trees to add; noise on prices, in units of the highest price
_PER_EDGE_S = 1e-9  # makes fewer edges better where no latencies are known
Adjacent = Mapping[str, Sequence[tuple[str, float]]]  # by device: those at its edges, and their latencies


@dataclass(frozen=True)
class _Pool:
    """Trees to choose from, with all their images under symmetry, and the optimal rates of the linear program."""

    columns: tuple[Column, ...]
    images: tuple[dict[str, str], ...]
    loads: Array
    rates: Array


def optimal_packing(
    topology: Topology,
    devices: Iterable[str] | None = None,
    packs: int | None = None,
    *,
    max_depth: int | None = None,
) -> TreePacking:
    """Return the trees that reduce and broadcast the most bytes per second on this machine, with the proof.

    If links are equally wide in both directions, the gap is 0 but for rounding. Otherwise the edges up and down are
    planned separately for up to 48 devices, and the bound is that of plans that reduce each element to a root. Above 48
    devices, both directions use one tree.

    Above 100 devices, the planner uses the machine's symmetry. Without symmetry, planning of more than 100 devices or
    300 links stops at a gap of 1 % or after some rounds (33 for 300 links, 4 for 2500). The ``notes`` then tell what
    is lost. Planning takes about 0.1 s for 16 devices and 1 s for 64, or 4 s if every link has a width of its own.

    Source: the theorem of Tutte (1961) and Nash-Williams (1961) on edge-disjoint spanning trees, as a linear program
    over routed trees, solved by column generation.

    Args:
        topology: the machine.
        devices: the devices that take part, all by default. Others forward nothing.
        packs: the number of trees, of equal share; by default as many as the optimum needs.
        max_depth: the largest number of edges between a device and its root; by default any. The bound stays that of
            all trees, so the gap shows the price of ``packs`` and ``max_depth``.

    Returns:
        The trees with their shares, the bytes per second that they reach, and the certificate.

    Raises:
        TopologyError: devices that are not there or do not reach each other; ``packs`` or ``max_depth`` that is not a
            whole number above 0; no tree of that depth.
        MissingExtraError: SciPy is not installed.

    >>> from treefold.topology import known_topology
    >>> packing = optimal_packing(known_topology("ring:4"))
    >>> packing.algbw, packing.gap, len(packing.trees)
    (Fraction(100000000000, 3), 0.0, 4)
    """
    return Packer(topology if devices is None else topology.restricted(devices)).packing(packs, max_depth=max_depth)


class Packer:
    """Finds the packings of one machine, each once. Packings share the solutions of linear programs.

    The program over all trees also gives the prices that prove the bound of every packing. Each ``max_depth`` has a
    program of its own.
    """

    def __init__(self, topology: Topology) -> None:
        """Store the machine; nothing is solved yet."""
        self._machine = topology
        self._packings: dict[tuple[int | None, int | None], TreePacking] = {}
        self._solutions: dict[int | None, tuple[Oracle, Solution]] = {}

    def packing(self, packs: int | None = None, *, max_depth: int | None = None) -> TreePacking:
        """Return what ``optimal_packing`` returns for all devices of the machine.

        Raises:
            TopologyError: ``packs`` or ``max_depth`` that is not a whole number above 0; no tree of that depth.
            MissingExtraError: SciPy is not installed.

        """
        _check_count("packs", packs)
        _check_count("max_depth", max_depth)
        if packs is None and max_depth is not None and self._has_shallow_optimum(max_depth):
            max_depth = None
        if (packs, max_depth) not in self._packings:
            self._packings[packs, max_depth] = self._packed(packs, max_depth)
        return self._packings[packs, max_depth]

    def _packed(self, packs: int | None, max_depth: int | None) -> TreePacking:
        machine = self._machine
        if len(machine.devices) == 1:
            only = SpanningTree(Fraction(1, packs or 1), machine.devices[0], (), ())
            return TreePacking(machine.devices, (only,) * (packs or 1), None, None)
        certificate = self._certificate
        oracle, solution = self._solution(max_depth)
        pool = _pool(self._network, solution, self._shifts)
        if packs is None:
            weights, algbw = exact_shares(self._network, pool.loads, pool.rates)
        else:
            # With shifts the pool has all images of its trees, which are enough to choose from.
            if not self._shifts:
                # One tree alone has none beside it that it would have to spare.
                further = richer_pool(self._network, oracle, solution) if packs > 1 else ()
                if max_depth is None:
                    further += balanced_trees(self._network, packs)
                pool = _enriched(pool, further)
            counts = equal_packs(self._network, pool.loads, pool.rates, packs)
            weights, algbw = counts.tolist(), reached(self._network, pool.loads, counts)
        trees = _trees(machine, pool, weights, packs)
        return TreePacking(machine.devices, trees, algbw, certificate, _notes(algbw, certificate))

    @cached_property
    def _network(self) -> Network:
        return Network(self._machine)

    @cached_property
    def _shifts(self) -> tuple[Shift, ...]:
        return find_shifts(self._machine) if len(self._machine.devices) > _LARGE else ()

    @cached_property
    def _certificate(self) -> Certificate:
        """The prices that bound every plan; on asymmetric machines those for trees with separate edges up and down."""
        network = self._network
        # On symmetric machines prices are equal in both directions, so a way up and a way down each cost a minimum
        # spanning tree at least, and mirrored trees cost just that. Elsewhere the cheapest tree up and the cheapest
        # tree down may differ.
        oracle = mirrored_trees(network) if network.is_symmetric else directed_trees(network)
        return certify(network, oracle, self._solution(None)[1].prices, is_directed=not network.is_symmetric)

    def _solution(self, max_depth: int | None) -> tuple[Oracle, Solution]:
        """Return the pricing for a bound on the depth (None: all trees), and the solution of its linear program."""
        if max_depth not in self._solutions:
            network, shifts = self._network, self._shifts
            is_mirrored = network.is_symmetric or len(network.devices) > _MOST_DIRECTED
            oracle = mirrored_trees(network) if is_mirrored else directed_trees(network)
            # Prices in inverse proportion to the width: a first bound, which needs no solver.
            start = InitialColumns((), 1 / network.width)
            if max_depth is not None:
                oracle = shallow_trees(network, max_depth)
            elif not shifts:  # with shifts, one tree and its images are enough
                start = initial_columns(network, oracle)
            if max_depth is not None and self._has_shallow_optimum(max_depth):
                self._solutions[max_depth] = oracle, _used(self._solution(None)[1])
            else:
                self._solutions[max_depth] = oracle, _solve(network, oracle, start, shifts)
        return self._solutions[max_depth]

    def _has_shallow_optimum(self, max_depth: int) -> bool:
        """Tell whether some trees of bounded depth are as good as the best of all trees."""
        return all(tree.depth <= max_depth for tree in self.packing().trees)


def _check_count(name: str, number: object) -> None:
    if number is not None and (not isinstance(number, int) or isinstance(number, bool) or number < 1):
        raise TopologyError(
            f"optimal_packing got {name}={short(number)}. It takes a whole number above 0, or None for any."
        )


def _solve(network: Network, oracle: Oracle, start: InitialColumns, shifts: tuple[Shift, ...]) -> Solution:
    # Each round of a large machine takes seconds, and the last percent takes most of the rounds.
    rows, max_rounds = len(network.capacities), _MOST_ROUNDS
    is_large = not shifts and (len(network.devices) > _LARGE or rows > _MANY_ROWS)
    if is_large:
        few_devices = len(network.devices) <= _LARGE
        max_rounds = max(_MOST_ROUNDS_OF_LARGE, _MOST_ROWS_IN_ALL // rows if few_devices else 0)
    return pack_trees(
        network,
        oracle,
        start,
        groups=row_groups(network, shifts),
        tolerance=_TOLERANCE_OF_LARGE if is_large else _TOLERANCE,
        max_rounds=max_rounds,
    )


def _pool(network: Network, solution: Solution, shifts: tuple[Shift, ...]) -> _Pool:
    """Return the columns as a pool; with shifts, the columns that carry anything and all their images."""
    if not shifts:
        nothing = ({node.name: node.name for node in network.topology.nodes},)
        loads = np.array([column.loads for column in solution.columns]).T
        return _Pool(solution.columns, nothing, loads, solution.rates)
    # Every column is multiplied by the number of images, so those without a rate are dropped first.
    solution = _used(solution)
    columns, images = solution.columns, tuple(all_images(network.topology, shifts))
    loads = np.empty((len(network.capacities), len(columns) * len(images)))
    for number, names in enumerate(images):
        rows = row_map(network, names)
        for index, column in enumerate(columns):
            loads[rows, number * len(columns) + index] = column.loads
    # The images share the tree's rate equally, which is the mean of the symmetric solutions. ``tile`` repeats the
    # columns image after image. The loads have this order, and ``_trees`` relies on it.
    return _Pool(columns, images, loads, np.tile(solution.rates, len(images)))


def _used(solution: Solution) -> Solution:
    """Return a solution with only the columns that carry anything."""
    used = solution.rates > solution.rates.sum() * _CARRIES
    columns = tuple(column for column, is_used in zip(solution.columns, used, strict=True) if is_used)
    return Solution(columns, solution.rates[used], solution.prices)


def _enriched(pool: _Pool, further: tuple[Column, ...]) -> _Pool:
    """Return the pool with further columns behind its own."""
    columns = (*pool.columns, *further)
    # A rate of 0: rounding the optimum gives them no pack, only the integer program may.
    rates = np.append(pool.rates, np.zeros(len(further)))
    return _Pool(columns, pool.images, np.array([column.loads for column in columns]).T, rates)


def _trees(machine: Topology, pool: _Pool, weights: list[int], packs: int | None) -> tuple[SpanningTree, ...]:
    """Return the rooted trees of positive weight; with ``packs``, one tree per unit of weight."""
    total, num_trees_at = sum(weights), Counter[str]()
    trees = list[SpanningTree]()
    for number, weight in enumerate(weights):
        image, index = divmod(number, len(pool.columns))
        times, share = (min(weight, 1), Fraction(weight, total)) if packs is None else (weight, Fraction(1, packs))
        for _ in range(times):
            trees.append(_tree(machine, pool.columns[index], pool.images[image], share, num_trees_at))
            # The root of a directed tree is part of the optimum, and says nothing about how to spread the free ones.
            num_trees_at[trees[-1].root] += pool.columns[index].is_mirrored
    return tuple(trees)


def _tree(
    machine: Topology, column: Column, names: dict[str, str], share: Fraction, num_trees_at: Counter[str]
) -> SpanningTree:
    def moved(edge: tuple[int, int]) -> Route:
        return tuple(names[node] for node in column.route_of[edge])

    if not column.is_mirrored:
        down = tuple(moved(edge) for edge in column.down)
        return SpanningTree(share, names[machine.devices[column.root]], tuple(moved(edge) for edge in column.up), down)
    routes = [moved(edge) for edge in column.route_of]
    return rooted_tree(machine, share, {(route[0], route[-1]): route for route in routes}, num_trees_at)


def _notes(algbw: Fraction, certificate: Certificate) -> tuple[str, ...]:
    notes = []
    if certificate.is_directed:
        notes.append(
            "Links differ in their two directions: the bound is that of plans that reduce each element to a root."
        )
    lost = float(1 - algbw / certificate.bound)
    if lost > _LOSS_WORTH_A_NOTE:
        notes.append(f"{lost:.2%} of the bound is not reached.")
    return tuple(notes)


def richer_pool(network: Network, oracle: Oracle, solution: Solution) -> tuple[Column, ...]:
    """Return trees to add to the pool: whole numbers of packs can use more trees than the optimum has.

    The trees are the cheapest at prices with random noise, from a fixed seed.
    """
    random = np.random.default_rng(len(network.capacities))
    known_loads = {tuple(column.loads) for column in solution.columns}
    found = list[Column]()
    # Two points of departure: the optimal prices, under which the optimum's trees are all equally cheap, and prices
    # that favour wide rows. Both have 1 as their greatest, so one scale of noise fits both.
    known = (solution.prices / solution.prices.max(), network.width.min() / network.width)
    for number in range(min(_SHAKEN, _LARGEST // len(network.capacities))):
        # Noise is only added: the shortest routes need prices that are not negative.
        prices = known[number % 2] + _SHAKES[number // 2 % 2] * random.random(len(network.capacities))
        found.append(oracle(prices)[0].column())
    # Trees with equal loads are one and the same variable to the program. Copies would only give the search symmetric
    # branches, which it must all visit.
    unlike = {tuple(column.loads): column for column in found}
    return tuple(column for loads, column in unlike.items() if loads not in known_loads)


def balanced_trees(network: Network, packs: int) -> tuple[Column, ...]:
    """Return ``packs`` trees, or fewer on large machines, each grown edge by edge where the loads so far are least."""
    count = len(network.devices)
    loads, columns = np.zeros(len(network.capacities)), list[Column]()
    for pack in range(min(packs, max(1, _MOST_EDGES // count))):
        is_in = np.zeros(count, bool)
        # Each tree grows from another device: all from one would crowd the links near it.
        is_in[pack % count] = True
        edges = list[tuple[int, int, Route, Route]]()
        for _ in range(count - 1):
            # A high power makes the sum over a route nearly the load of its fullest row.
            # The load after one more crossing, not before it: else all empty rows, wide or narrow, would look alike.
            fullness = (loads + 1) / network.width
            routes = network.routes((fullness / fullness.max()) ** _POWER)
            open_cost = np.where(is_in[:, None] & ~is_in, routes.cost_there_and_back, np.inf)
            parent, child = (int(end) for end in np.unravel_index(open_cost.argmin(), open_cost.shape))
            edges.append((parent, child, *routes.there_and_back(parent, child)))
            # At once, not after the tree: the next edges of this tree must see that these rows are taken.
            loads += network.crossings(*edges[-1][2:])
            is_in[child] = True
        columns.append(mirrored_column(network, edges))
    return tuple(columns)


def equal_packs(network: Network, loads: Array, rates: Array, packs: int) -> Counts:
    """Return how many of ``packs`` equal packs each tree of the pool carries, for the largest bytes per second.

    The integer program minimises the largest load of a row relative to its width. Its search is bounded, so rounding by
    largest remainders is tried as well, and the better of the two is returned. A single pack gets the tree that reaches
    most alone; of equally good trees, the one that carries most in the optimum.
    """
    if packs == 1:
        fullest = (loads / network.width[:, None]).max(axis=0)
        is_best = fullest <= fullest.min() * (1 + _CLOSE)
        return np.bincount([np.where(is_best, rates, -1.0).argmax()], minlength=len(rates))
    rounded = _largest_remainders(rates / rates.sum(), packs)
    solved = None
    if loads.size <= _LARGEST:
        solved = _solve_equal_packs(loads, network.width, np.full(loads.shape[1], packs), packs)
    # Rounded to the nearest, because the solver's whole numbers are whole to 1e-6 only: cut off, 2.9999999 would lose a
    # pack. The counts are compared by what they exactly reach, so the solver's own objective is never trusted.
    candidates = [rounded] if solved is None else [rounded, np.rint(solved).astype(np.int64)]
    return max(candidates, key=lambda counts: reached(network, loads, counts))


def _largest_remainders(shares: Array, packs: int) -> Counts:
    # Hamilton's method: no count is further than 1 from its exact value, and their sum is right.
    exact = shares * packs
    counts = np.floor(exact).astype(np.int64)
    missing = packs - int(counts.sum())
    # The most negative difference is the largest remainder; stable, so that equal machines get equal packings.
    counts[np.argsort(counts - exact, kind="stable")[:missing]] += 1
    return counts


def _solve_equal_packs(loads: Array, width: Array, most: Counts, packs: int) -> Array | None:
    """Minimise t where Σ load·count ≤ t·width and Σ count = packs."""
    optimize, num_trees = load_scipy_optimize(), loads.shape[1]
    # The variables are the counts and, last, t: load·count − width·t ≤ 0.
    capacity = optimize.LinearConstraint(np.column_stack([loads, -width]), -math.inf, 0.0)
    total = optimize.LinearConstraint(np.append(np.ones(num_trees), 0.0)[None, :], packs, packs)
    found = optimize.milp(
        np.append(np.zeros(num_trees), 1.0),
        constraints=[capacity, total],
        integrality=np.append(np.ones(num_trees), 0),
        bounds=optimize.Bounds(0, np.append(most, math.inf)),
        # A gap of 0 is not asked for: the nodes are few, and no plan is better by a millionth.
        options={"node_limit": _MOST_NODES, "mip_rel_gap": _CLOSE},
    )
    return None if found.x is None else found.x[:-1]


def rooted_tree(
    topology: Topology, share: Fraction, routes: Mapping[tuple[str, str], Route], num_trees_at: Mapping[str, int]
) -> SpanningTree:
    """Return the tree of these routes. Its root is the device with the least latency to the device farthest away.

    ``routes``: both directions of every edge. Among several such devices, the root is the one with the fewest trees so
    far, by ``num_trees_at``, then the first of the topology.
    """
    adjacent = grouped(
        (source, (target, _PER_EDGE_S + sum(topology.alphas[ends] for ends in itertools.pairwise(route))))
        for (source, target), route in routes.items()
    )
    centres = _centres(adjacent)
    # Roots are spread, so that no device makes the final fold of every pack while the others wait for it.
    root = min((device for device in topology.devices if device in centres), key=lambda name: num_trees_at.get(name, 0))
    walk = _walk(adjacent, root)
    down = tuple(routes[parent, child] for child, (parent, _) in walk.items() if child != root)
    up = tuple(routes[child, parent] for child, (parent, _) in reversed(walk.items()) if child != root)
    return SpanningTree(share, root, up, down)


def _centres(adjacent: Adjacent) -> set[str]:
    """Return the devices of least eccentricity, which is the latency to the device farthest away.

    In a tree, the device farthest from any device is an end of a longest path. So the eccentricity of every device is
    the latency to the farther of that path's two ends, and three walks replace one from each device. If the two
    directions of a link differ in latency, the result is approximate, at a cost in latency but not in throughput.
    """
    start = _farthest(_walk(adjacent, next(iter(adjacent))))
    from_start = _walk(adjacent, start)
    from_end = _walk(adjacent, _farthest(from_start))
    eccentricity = {device: max(from_start[device][1], from_end[device][1]) for device in adjacent}
    least = min(eccentricity.values())
    # Sums of the same latencies in another order differ in their last digits, and mean the same.
    return {device for device, value in eccentricity.items() if value <= least * (1 + 1e-9)}


def _walk(adjacent: Adjacent, root: str) -> dict[str, tuple[str, float]]:
    """Return each device's parent and distance, devices in breadth-first order."""
    # In a tree there is one path to each device, so the first one found is the shortest whatever the latencies.
    found = {root: (root, 0.0)}
    todo = [root]
    # The list grows while it is walked: it is the queue of the search.
    for device in todo:
        for other, latency in adjacent[device]:
            if other not in found:
                found[other] = (device, found[device][1] + latency)
                todo.append(other)
    return found


def _farthest(walk: Mapping[str, tuple[str, float]]) -> str:
    return max(walk, key=lambda device: walk[device][1])
