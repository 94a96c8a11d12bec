"""Whole plans of one all-reduce by one method: what sizes are compared with, and the choice is made from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

from treefold.devices import canonical_device
from treefold.packing import Item, Pack, split_by_shares
from treefold.plan import Plan, finish
from treefold.plan.ir import Goal, Leaf
from treefold.planners.builder import LeafWork, PlanBuilder
from treefold.planners.one_shot import add_one_shot
from treefold.planners.star import add_star
from treefold.planners.tree_packing import Tree, add_tree
from treefold.planners.two_level import add_two_level

_LENGTH = 2**20  # elements: enough that shares of packs are met to a millionth
AddPack = Callable[[PlanBuilder, Pack, int], None]


def one_array(devices: Sequence[str], length: int = _LENGTH, dtype: str = "float32") -> tuple[LeafWork, ...]:
    """Return the work of all-reducing one array of ``length`` elements, a replica on every device."""
    names = tuple(canonical_device(device) for device in devices)
    return (LeafWork(Leaf("", dtype, Goal.FOLD), (length,) * len(names), names, names),)


def plan_packs(work: Sequence[LeafWork], shares: Sequence[Fraction], add_pack: AddPack, algorithm: str) -> Plan:
    """Return the proved plan that cuts the leaves of each dtype by ``shares`` and adds each pack with ``add_pack``.

    All leaves have the same sources, which are their destinations. Packs without elements are left out.

    Raises:
        PlanError: the leaves cannot be planned together.

    """
    builder = PlanBuilder(work)
    by_dtype: dict[str, list[Item]] = {}
    for index, item in enumerate(work):
        by_dtype.setdefault(item.leaf.dtype, []).append(Item(index, item.leaf.dtype, item.result_length))
    for items in by_dtype.values():
        for number, pack in enumerate(split_by_shares(items, shares)):
            if pack.length:
                add_pack(builder, pack, number)
    draft = builder.draft(
        collective="all_reduce", algorithm=algorithm, executor="local", kernel="", accumulate="wide", notes=()
    )
    return finish(draft)


def plan_one_shot(work: Sequence[LeafWork]) -> Plan:
    """Return the plan in which every device sends everything to every other: 1 hop, (n − 1)·S per device."""
    return plan_packs(work, [Fraction(1)], lambda builder, pack, _: add_one_shot(builder, pack), "one shot")


def plan_two_shot(work: Sequence[LeafWork]) -> Plan:
    """Return the plan in which every device reduces its n-th part and sends it to all: 2 hops, 2·(n − 1)·S/n each."""
    devices = tuple(dict.fromkeys(work[0].sources))
    shares = [Fraction(1, len(devices))] * len(devices)
    return plan_packs(work, shares, lambda builder, pack, i: add_star(builder, pack, devices[i]), "two shots")


def plan_star(work: Sequence[LeafWork], root: str | None = None) -> Plan:
    """Return the plan of ``ReductionToOneDevice``: everything meets on ``root``, by default the first destination."""
    where = work[0].destinations[0] if root is None else canonical_device(root)
    words = f"all values meet on {where}"
    return plan_packs(work, [Fraction(1)], lambda builder, pack, _: add_star(builder, pack, where), words)


def plan_two_level(work: Sequence[LeafWork], num_packs: int = 1) -> Plan:
    """Return the plan of TensorFlow's ``HierarchicalCopyAllReduce``, with the roots of its packs rotating."""
    shares = [Fraction(1, num_packs)] * num_packs
    return plan_packs(work, shares, add_two_level, f"two groups of devices, {num_packs} packs")


def plan_along(work: Sequence[LeafWork], trees: Sequence[Tree], algorithm: str) -> Plan:
    """Return the plan that folds each tree's share of the values along it: rings, chains, trees of any kind."""
    return plan_packs(
        work, [tree.share for tree in trees], lambda builder, pack, i: add_tree(builder, pack, trees[i]), algorithm
    )
