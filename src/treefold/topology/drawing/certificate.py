"""Checks a packing's certificate without the planner's code (whole numbers, Dijkstra, Prim), and describes it."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise

from treefold.devices import Device, device_type
from treefold.topology.graph import Topology
from treefold.topology.planning.tree_packing import TreePacking

_Prices = dict[tuple[str, str], int]
_WHERE = {"sys": "between sockets", "net": "between hosts", "pcie": "over PCIe", "nvlink": "over NVLink"}
_WHERE |= {"xgmi": "over xGMI", "c2c": "over C2C"}
_SHOWN = 4


def recomputed_bound(packing: TreePacking, topology: Topology) -> Fraction | None:
    """Return the bytes per second that no plan exceeds: Σ c·l / (the cheapest tree, up and down, at prices l).

    Returns None for one device, and for links that differ in their directions. In the latter case the bound is that of
    trees up and down that are chosen apart, which this does not compute.
    """
    certificate = packing.certificate
    if certificate is None or certificate.is_directed:
        return None
    machine = topology.restricted(packing.devices)
    prices = {(source, target): price for source, target, price in certificate.prices}
    # In a second all links together earn at most Σ c·l. Every byte that is reduced and broadcast pays for some tree, up
    # and down, at least what the cheapest one costs. So no more bytes than the quotient get through.
    earned = sum((machine.capacity(*ends) * price for ends, price in prices.items()), Fraction(0))
    cost = {device: _cheapest_routes(machine, prices, device) for device in machine.devices}
    tree = _cheapest_tree(machine.devices, cost)
    return earned / tree if tree else None


def _cheapest_routes(machine: Topology, prices: _Prices, source: str) -> dict[str, int]:
    """Return the price of the cheapest route to every other device; no route passes a device."""
    best, todo = {source: 0}, [(0, source)]
    while todo:
        cost, name = heapq.heappop(todo)
        if cost > best[name] or (name != source and machine.kinds[name] == "device"):
            continue
        for other in machine.neighbours(name):
            after = cost + prices.get((name, other), 0)
            if other not in best or after < best[other]:
                best[other] = after
                heapq.heappush(todo, (after, other))
    return best


def _cheapest_tree(devices: tuple[str, ...], cost: dict[str, dict[str, int]]) -> int:
    inside, total = {devices[0]}, 0
    while len(inside) < len(devices):
        outside = [device for device in devices if device not in inside]
        edges = ((a, b) for a in inside for b in outside if b in cost[a] and a in cost[b])
        price, nearest = min((cost[a][b] + cost[b][a], b) for a, b in edges)
        total += price
        inside.add(nearest)
    return total


def most_loaded(packing: TreePacking, topology: Topology) -> Fraction:
    """Return the largest share of its capacity that a link carries when the trees run at the packing's rate."""
    load: dict[tuple[str, str], Fraction] = defaultdict(Fraction)
    for tree in packing.trees:
        for route in (*tree.up, *tree.down):
            for ends in pairwise(route):
                load[ends] += tree.share
    rate = packing.algbw or Fraction(0)
    return max((rate * part / topology.capacity(*ends) for ends, part in load.items()), default=Fraction(0))


def describe_bottleneck(packing: TreePacking, topology: Topology) -> str:
    """Return which devices are held apart by which links, such as "GPUs 0–3 against 4–7: 16 GB/s between sockets"."""
    certificate = packing.certificate
    if certificate is None:
        return "none: one device has nothing to send"
    kinds: dict[tuple[str, float], None] = {}
    for source, target, _ in certificate.prices:
        for link in topology.links:
            if (link.source, link.target) == (source, target):
                is_nic = "nic" in {topology.kinds[source], topology.kinds[target]}
                kinds[_where("net" if is_nic else link.kind), link.bytes_per_s / 1e9] = None
    spots = list(dict.fromkeys(where for where, _ in kinds))
    groups = _groups(certificate.parts)
    parts = len(certificate.parts)
    if certificate.is_partition or parts == 2:  # noqa: PLR2004 - then the bound is what joins the two
        whole = float(certificate.bound) / 1e9 * (parts - 1)
        return f"{groups}: {whole:.4g} GB/s {' and '.join(spots)}{' in all' if parts > 2 else ''}"  # noqa: PLR2004
    each = []
    for spot in spots:
        widths = sorted({f"{width:.4g}" for where, width in kinds if where == spot}, key=float)
        each.append(f"{', '.join(widths)} GB/s per link {spot}")
    return f"{groups}: {' and '.join(each)}"


def _where(kind: str) -> str:
    return _WHERE.get(kind, f"over {kind}" if kind else "between them")


def _groups(parts: Sequence[Sequence[str]]) -> str:
    noun = "GPUs" if all(device_type(name) == "gpu" for part in parts for name in part) else "devices"
    if all(len(part) == 1 for part in parts):
        return f"each of {len(parts)} {noun} against the others"
    shown = [in_ranges(part) for part in parts[:_SHOWN]]
    more = f" … ({len(parts)} groups)" if len(parts) > _SHOWN else ""
    return f"{noun} {' against '.join(shown)}{more}"


def in_ranges(devices: Sequence[str]) -> str:
    """Return device numbers, consecutive ones as ranges; whole names if some are not GPUs.

    >>> in_ranges(["gpu:0", "gpu:1", "gpu:2", "gpu:5"]), in_ranges(["cpu:0", "gpu:1"])
    ('0–2, 5', 'cpu:0, gpu:1')
    """
    if any(device_type(name) != "gpu" for name in devices):
        return ", ".join(devices)
    numbers = sorted(Device.parse(name).index for name in devices)
    starts = [numbers[0], *(b for a, b in pairwise(numbers) if b > a + 1)]
    stops = [*(a for a, b in pairwise(numbers) if b > a + 1), numbers[-1]]
    return ", ".join(f"{a}" if a == b else f"{a}–{b}" for a, b in zip(starts, stops, strict=True))
