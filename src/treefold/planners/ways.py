"""How each method cuts values into packs, and how it plans one: the part of a plan that depends on the machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from treefold.errors import ArgumentError
from treefold.errors.words import counted
from treefold.packing import Pack
from treefold.planners.builder import PlanBuilder
from treefold.planners.one_shot import add_one_shot
from treefold.planners.ring import pack_rings
from treefold.planners.size_table import split_method
from treefold.planners.star import add_star
from treefold.planners.tree_packing import TreePacking, add_tree, optimal_packing
from treefold.topology import Topology


@dataclass(frozen=True, slots=True)
class Way:
    """A method on a machine: ``shares`` of the values, one per pack, and ``add_pack``, given a pack and its place.

    ``packing``: the trees, for methods that have some. ``algorithm``: the method in words.
    """

    shares: tuple[Fraction, ...]
    add_pack: Callable[[PlanBuilder, Pack, int], None]
    algorithm: str
    packing: TreePacking | None = None


def way_of(method: str, machine: Topology) -> Way:
    """Return a method of a size table between all devices of a machine.

    Raises:
        ArgumentError: an unknown method, or ``"vendor"``, which is no plan of ours.
        MissingExtraError: SciPy is not installed, and the method has trees.

    """
    name, number = split_method(method)
    devices = machine.devices
    if name == "vendor":
        raise ArgumentError.vendor()
    if name == "oneshot":
        return Way((Fraction(1),), lambda builder, pack, _: add_one_shot(builder, pack), "one shot")
    if name == "twoshot":
        shares = (Fraction(1, len(devices)),) * len(devices)
        return Way(shares, lambda builder, pack, place: add_star(builder, pack, devices[place]), "two shots")
    if name == "star":
        centre = _centre(machine)
        words = f"all values meet on {centre}"
        return Way((Fraction(1),), lambda builder, pack, _: add_star(builder, pack, centre), words)
    if name == "rings":
        rings = pack_rings(machine)
        trees = rings.trees
        return Way(
            tuple(tree.share for tree in trees),
            lambda builder, pack, place: add_tree(builder, pack, trees[place]),
            f"{counted(len(rings.orders), 'ring')} packed into the links of the topology",
        )
    return along(_packing(name, number, machine))


def along(packing: TreePacking) -> Way:
    """Return the way of a packing: one pack per tree, by its share."""
    shares = tuple(tree.share for tree in packing.trees)
    words = f"{len(shares)} trees packed into the links of the topology"
    return Way(shares, lambda builder, pack, place: add_tree(builder, pack, packing.trees[place]), words, packing)


def _packing(name: str, number: int | None, machine: Topology) -> TreePacking:
    if name == "tree":
        return optimal_packing(machine, packs=1, max_depth=radius(machine))
    if name == "shallow":
        return optimal_packing(machine, max_depth=number)
    return optimal_packing(machine, packs=number)


def radius(topology: Topology) -> int:
    """Return the least depth that a tree over all devices needs, an edge being a route through no other device."""
    return min(max(hops.values()) for hops in _hops(topology).values())


def _centre(topology: Topology) -> str:
    """Return the device that all others reach over the fewest edges, the first of these."""
    return min(_hops(topology).items(), key=lambda item: (max(item[1].values()), sum(item[1].values())))[0]


def _hops(topology: Topology) -> dict[str, dict[str, int]]:
    """Return by how many edges every device is away from every other, where devices forward."""
    found = {}
    is_device = set(topology.devices)
    for start in topology.devices:
        hops, layer = {start: 0}, [start]
        while layer:
            beside = {device for name in layer for device in _beside(topology, name, is_device)}
            fresh = [device for device in topology.devices if device in beside and device not in hops]
            hops.update(dict.fromkeys(fresh, hops[layer[0]] + 1))
            layer = fresh
        found[start] = hops
    return found


def _beside(topology: Topology, start: str, is_device: set[str]) -> set[str]:
    seen, todo = {start}, [start]
    while todo:
        for name in topology.neighbours(todo.pop()):
            if name not in seen:
                seen.add(name)
                if name not in is_device:
                    todo.append(name)
    return (seen & is_device) - {start}
