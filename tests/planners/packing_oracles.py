"""Oracles for tree packings, which share nothing with the planner.

Optima come from enumerating partitions and trees, and from linear programs over flows. Certificates and loads are
recomputed from the links one by one. ``TREEFOLD_CASES`` is the number of random machines of each kind; ``full`` is
1000.
"""

import heapq
import itertools
import math
import os
from collections import Counter, defaultdict
from fractions import Fraction

import numpy as np
from scipy.optimize import linprog

from treefold.topology import TopologyBuilder

_ASKED = os.environ.get("TREEFOLD_CASES", "60")
CASES = 1000 if _ASKED == "full" else int(_ASKED)


# random machines


def random_direct(seed, *, is_symmetric=True):
    """Return 3 to 7 devices (to 5 where links are not symmetric), a random tree of links and some more."""
    random = np.random.default_rng(seed)
    count = int(random.integers(3, 8 if is_symmetric else 6))
    builder = TopologyBuilder(f"direct {seed}")
    for number in range(count):
        builder.device(f"gpu:{number}")
    pairs = {(int(random.integers(number)), number) for number in range(1, count)}
    pairs |= {pair for pair in itertools.combinations(range(count), 2) if random.random() < 0.4}
    for a, b in sorted(pairs):
        width = int(random.integers(1, 7)) * 12.5
        back = width if is_symmetric else int(random.integers(1, 7)) * 12.5
        builder.link(f"gpu:{a}", f"gpu:{b}", gb_per_s=width, back_gb_per_s=back)
    return builder.build()


def random_routed(seed):
    """Return 3 to 5 devices, up to 3 carriers joined at random, and some direct links; links are symmetric."""
    random = np.random.default_rng(seed)
    count, carriers = int(random.integers(3, 6)), int(random.integers(1, 4))
    builder = TopologyBuilder(f"routed {seed}")
    for number in range(count):
        builder.device(f"gpu:{number}")
    for number in range(carriers):
        (builder.switch if number % 2 else builder.host)(f"c{number}")
    links = [(f"c{int(random.integers(number))}", f"c{number}") for number in range(1, carriers)]
    links += [(f"gpu:{number}", f"c{int(random.integers(carriers))}") for number in range(count)]
    names = [f"gpu:{n}" for n in range(count)] + [f"c{n}" for n in range(carriers)]
    links += [pair for pair in itertools.combinations(names, 2) if random.random() < 0.25]
    for a, b in links:
        builder.link(a, b, gb_per_s=int(random.integers(1, 9)))
    return builder.build()


# optima


def partitions(items):
    """Yield every way to divide a list into parts."""
    if not items:
        yield []
        return
    for rest in partitions(items[1:]):
        yield [[items[0]], *rest]
        for number, part in enumerate(rest):
            yield [*rest[:number], [items[0], *part], *rest[number + 1 :]]


def best_partition(topology):
    """Return min c(P)/(|P| − 1) over all partitions, for direct links (Tutte, Nash-Williams)."""
    best = None
    for parts in partitions(list(topology.devices)):
        if len(parts) > 1:
            part_of = {device: number for number, part in enumerate(parts) for device in part}
            across = sum(width for (a, b), width in topology.capacities.items() if part_of[a] < part_of[b])
            value = Fraction(across, len(parts) - 1)
            best = value if best is None else min(best, value)
    return best


def all_trees(count):
    """Yield the edges of every tree on 0 … count − 1, from Prüfer's sequences."""
    for sequence in itertools.product(range(count), repeat=count - 2):
        degree = Counter(sequence)
        edges, left = [], list(sequence)
        open_nodes = sorted(node for node in range(count) if not degree[node])
        for node in left:
            leaf = heapq.heappop(open_nodes)
            edges.append((min(leaf, node), max(leaf, node)))
            degree[node] -= 1
            if not degree[node]:
                heapq.heappush(open_nodes, node)
        edges.append(tuple(sorted(open_nodes)))
        yield edges


def best_over_all_trees(topology):
    """Return the most that all spanning trees together carry, their edges' traffic being split over routes at will.

    One variable per tree, and per pair of devices one flow through the carriers; what a link carries there it also
    carries back.
    """
    devices, columns, rows = topology.devices, [], defaultdict(dict)
    equal = defaultdict(dict)  # constraint → column → factor, = 0
    for edges in all_trees(len(devices)):
        for edge in edges:
            equal["use", edge][len(columns)] = -1.0
        columns.append(-1.0)
    for a, b in itertools.combinations(range(len(devices)), 2):
        ends = devices[a], devices[b]
        for source, target in topology.capacities:
            through = {source, target} - set(ends)
            if target == ends[0] or source == ends[1] or any(topology.kinds[name] == "device" for name in through):
                continue
            column = len(columns)
            columns.append(0.0)
            rows[frozenset((source, target))][column] = 1.0
            if source == ends[0]:
                equal["use", (a, b)][column] = 1.0
            else:
                equal["keep", (a, b), source][column] = 1.0
            if target != ends[1]:
                equal["keep", (a, b), target][column] = -1.0
    limits = [float(topology.capacity(*link)) / 1e9 for link in map(tuple, rows)]
    found = linprog(
        columns,
        A_ub=_dense(rows.values(), len(columns)),
        b_ub=limits,
        A_eq=_dense(equal.values(), len(columns)),
        b_eq=np.zeros(len(equal)),
    )
    return -found.fun * 1e9


def best_rooted_flows(topology):
    """Return the optimum of the general linear program for direct links that differ in their directions.

    Weight w_v is reduced to device v and broadcast from it, and the two divide every link's capacity. There is one flow
    of Σ w from the roots to every device, and one from every device to the roots (Edmonds).
    """
    devices, links = topology.devices, list(topology.capacities)
    number = itertools.count()
    weight = {v: next(number) for v in devices}
    part = {(way, link): next(number) for way in ("up", "down") for link in links}
    upper, limits, equal = [], [], []
    for link in links:
        upper.append({part["up", link]: 1.0, part["down", link]: 1.0})
        limits.append(float(topology.capacity(*link)) / 1e9)
    for way, device in itertools.product(("up", "down"), devices):
        flow = {link: next(number) for link in links}
        at_root = {v: next(number) for v in devices}
        for link in links:
            upper.append({flow[link]: 1.0, part[way, link]: -1.0})
            limits.append(0.0)
        for v in devices:
            upper.append({at_root[v]: 1.0, weight[v]: -1.0})
            limits.append(0.0)
            balance = {at_root[v]: 1.0}
            for link in links:
                into, out = (link[1] == v, link[0] == v) if way == "down" else (link[0] == v, link[1] == v)
                if into or out:
                    balance[flow[link]] = 1.0 if into else -1.0
            if v == device:
                for root in devices:
                    balance[weight[root]] = -1.0
            equal.append(balance)
    size = next(number)
    cost = np.zeros(size)
    cost[list(weight.values())] = -1.0
    found = linprog(cost, A_ub=_dense(upper, size), b_ub=limits, A_eq=_dense(equal, size), b_eq=np.zeros(len(equal)))
    return -found.fun * 1e9


def _dense(rows, size):
    table = np.zeros((len(rows), size))
    for line, row in zip(table, rows, strict=True):
        for column, factor in row.items():
            line[column] = factor
    return table


# packings


def check_trees(packing, topology):
    """Assert that these are spanning trees along real routes, and that no link is over its capacity at their rate."""
    assert sum(tree.share for tree in packing.trees) == 1
    loads = Counter()
    for tree in packing.trees:
        assert tree.share > 0
        assert tree.pairs == tuple((route[0], route[-1]) for route in tree.up)
        check_tree(tree, packing.devices)
        for route in (*tree.up, *tree.down):
            assert not {topology.kinds[name] for name in route[1:-1]} & {"device"}
            for link in itertools.pairwise(route):
                loads[link] += tree.share
    for link, share in loads.items():
        assert share * packing.algbw <= topology.capacities[link]
    assert any(share * packing.algbw == topology.capacities[link] for link, share in loads.items())


def check_tree(tree, devices):
    """Assert that every device sends once, after all that it waits for, and receives the result once."""
    waits = Counter(route[-1] for route in tree.up)
    sent = set()
    for route in tree.up:
        assert route[0] not in sent
        assert waits[route[0]] == 0
        sent.add(route[0])
        waits[route[-1]] -= 1
    assert sent == set(devices) - {tree.root}
    has = {tree.root}
    for route in tree.down:
        assert route[0] in has
        assert route[-1] not in has
        has.add(route[-1])
    assert has == set(devices)


def check_certificate(packing, topology):
    """Assert that the certificate's prices prove its bound, recomputed link by link."""
    certificate = packing.certificate
    prices = dict.fromkeys(topology.capacities, 0)
    for source, target, price in certificate.prices:
        assert type(price) is int
        assert price > 0
        prices[source, target] = price
    costs = {device: cheapest_from(topology, prices, device) for device in packing.devices}
    if certificate.is_directed:
        cheapest = min(
            cheapest_arborescence(packing.devices, root, lambda a, b: costs[a][b])
            + cheapest_arborescence(packing.devices, root, lambda a, b: costs[b][a])
            for root in packing.devices
        )
    else:
        cheapest = cheapest_tree(packing.devices, lambda a, b: costs[a][b] + costs[b][a])
    assert certificate.cost == cheapest
    assert certificate.bound == sum(topology.capacities[link] * price for link, price in prices.items()) / cheapest
    assert packing.algbw <= certificate.bound
    assert sorted(device for part in certificate.parts for device in part) == sorted(packing.devices)
    if certificate.is_partition:
        part_of = {device: number for number, part in enumerate(certificate.parts) for device in part}
        across = sum(width for (a, b), width in topology.capacities.items() if part_of[a] < part_of[b])
        assert Fraction(across, len(certificate.parts) - 1) == certificate.bound


def cheapest_from(topology, prices, start):
    """Return what the cheapest route to every other device costs; no route goes through a device (Dijkstra)."""
    cost, todo = {start: 0}, [(0, start)]
    while todo:
        at, name = heapq.heappop(todo)
        if at > cost[name] or (topology.kinds[name] == "device" and name != start):
            continue
        for near in topology.neighbours(name):
            if at + prices[name, near] < cost.get(near, float("inf")):
                cost[near] = at + prices[name, near]
                heapq.heappush(todo, (cost[near], near))
    return defaultdict(lambda: float("inf"), cost)


def cheapest_tree(devices, cost):
    """Return the cost of the minimum spanning tree (Kruskal)."""
    part_of, total = {device: {device} for device in devices}, 0
    for a, b in sorted(itertools.combinations(devices, 2), key=lambda pair: cost(*pair)):
        if part_of[a] is not part_of[b]:
            total += cost(a, b)
            part_of[a] |= part_of[b]
            for device in part_of[b]:
                part_of[device] = part_of[a]
    return total


def cheapest_arborescence(devices, root, cost, max_depth=math.inf):
    """Return the cost of the cheapest tree that leads away from the root, all choices of parents tried."""
    others = [device for device in devices if device != root]
    best = math.inf
    for chosen in itertools.product(devices, repeat=len(others)):
        parents = dict(zip(others, chosen, strict=True))
        depths = all_depths(parents, root)
        if len(depths) == len(devices) and max(depths.values()) <= max_depth:
            best = min(best, sum(cost(parents[device], device) for device in others))
    return best


def all_depths(parents, root):
    """Return the depth of every device that its parents lead to the root."""
    depths = {root: 0}
    for _ in parents:
        depths |= {child: depths[parent] + 1 for child, parent in parents.items() if parent in depths}
    return depths
