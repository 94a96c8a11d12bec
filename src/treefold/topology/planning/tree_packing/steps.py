"""The steps of a plan from trees: one pack per tree, folded up to the root and sent back down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from treefold.errors.words import counted
from treefold.packing import Pack
from treefold.plan.ir import Range
from treefold.planners.builder import PlanBuilder
from treefold.planners.method import Method
from treefold.topology.planning.tree_packing.packing import Tree, TreePacking

_PACK = 0


def along(trees: Sequence[Tree], words: str, notes: tuple[str, ...] = ()) -> Method:
    """Return the method that folds each tree's share of the values along it."""
    shares = tuple(tree.share for tree in trees)
    return Method(shares, lambda builder, pack, number: add_tree(builder, pack, trees[number]), words, notes)


def along_packing(packing: TreePacking) -> Method:
    """Return the method of a packing: one pack per tree."""
    words = f"{counted(len(packing.trees), 'tree')} packed into the links of the topology"
    return along(packing.trees, words, packing.notes)


def add_tree(builder: PlanBuilder, pack: Pack, tree: Tree) -> None:
    """Reduce a pack along a tree to its root and send the result back to all of the tree's devices.

    The values' devices must be the tree's and the destinations, in any order. A copy from device to device is one hop,
    whatever lies between them. Costs 2·(n − 1) copies of the pack between n devices.
    """
    number = builder.new_pack()
    work = builder.work[pack.fragments[0].leaf]
    held: dict[str, list[tuple[int, Range]]] = {tree.root: []}  # by device: first replica folded in, and where it is
    for replica, device in enumerate(work.sources):
        packed = builder.packed_input(pack, number, replica, _PACK)
        held.setdefault(device, []).append((replica, packed))
    # A device of height h folds in stage 2h + 1 and sends in stage 2h + 2, so all copies from one height share a step.
    heights = _heights(tree.pairs)
    for sender, receiver in tree.pairs:
        # ``pairs`` begins with the leaves: whatever a sender receives has been added to ``held`` before its own turn.
        first, fold = builder.partial_fold(held[sender], number, 2 * heights[sender] + 1)
        arrived = builder.send(fold, receiver, number, 2 * heights[sender] + 2)
        held[receiver].append((first, arrived))
    stage = 2 * heights.get(tree.root, 0) + 1
    # In order of the first replica: results must not depend on the order in which children were listed.
    sources = [part for _, part in sorted(held[tree.root], key=lambda item: item[0])]
    result = builder.combine(sources, builder.landing(pack, tree.root), number, stage, final=True)
    _spread(builder, pack, tree, result, number, stage + 1)


def _heights(pairs: Sequence[tuple[str, str]]) -> Mapping[str, int]:
    """Return how many edges lie between each device and the farthest one below it; senders come before receivers."""
    heights: dict[str, int] = {}
    for sender, receiver in pairs:
        # A sender comes after all of its own children, so its height is final when it is passed on.
        heights[receiver] = max(heights.get(receiver, 0), heights.setdefault(sender, 0) + 1)
    return heights


def _spread(builder: PlanBuilder, pack: Pack, tree: Tree, result: Range, number: int, stage: int) -> None:
    here, depth = {tree.root: result}, {tree.root: 0}
    builder.unpack(result, pack, number, stage)
    # All copies to one depth share a step: what has arrived in it is passed on, and unpacked, in the next.
    for route in tree.down:
        parent, child = route[0], route[-1]
        depth[child] = depth[parent] + 1
        here[child] = builder.deliver(here[parent], pack, child, number, stage + depth[parent])
        builder.unpack(here[child], pack, number, stage + depth[child])
