"""Two groups of devices, reduced side by side, then across: TensorFlow's hierarchical copy, for any device count.

TensorFlow takes groups of n // 2 and so loses the last replica of an odd count; here they are ⌈n/2⌉ and ⌊n/2⌋.
"""

from __future__ import annotations

from collections.abc import Sequence

from treefold.packing import Pack
from treefold.plan.ir import Range, Role
from treefold.planners.builder import PlanBuilder

_PACK, _UP, _COMBINE, _ACROSS, _FINAL, _BACK, _DOWN, _UNPACK = range(8)


def two_level_roots(num_replicas: int, index: int) -> tuple[int, int | None]:
    """Return the replicas on whose devices pack ``index`` is reduced: its root, and the head of the other group.

    Roots rotate from pack to pack, so that the packs spread over the devices; for even counts the pairs are
    TensorFlow's, which on a DGX-1 always share a link.
    """
    half = (num_replicas + 1) // 2
    root = index % num_replicas
    if num_replicas == 1:
        return root, None
    return root, half + root % (num_replicas - half) if root < half else root - half


def add_two_level(builder: PlanBuilder, pack: Pack, index: int) -> None:
    """Reduce a pack along the two-level tree of its ``index`` and send the result back along it.

    The values' devices must be the destinations, in any order. Costs 2·(n − 1) copies of the pack between n devices.
    """
    number = builder.new_pack()
    work = builder.work[pack.fragments[0].leaf]
    count = len(work.sources)
    root, head = two_level_roots(count, index)
    half = (count + 1) // 2
    groups = (range(half), range(half, count))
    packed = [builder.packed_input(pack, number, replica, _PACK) for replica in range(count)]
    root_device = work.sources[root]
    folds = []
    for group in groups:
        if group:
            device = root_device if root in group else work.sources[head if head is not None else root]
            fold = _group_fold(builder, [packed[replica] for replica in group], device, number)
            folds.append(builder.send(fold, root_device, number, _ACROSS))
    result = builder.combine(folds, builder.landing(pack, root_device), number, _FINAL, final=True)
    _spread(builder, pack, result, number, groups[0] if root in groups[0] else groups[1], head)


def _group_fold(builder: PlanBuilder, packed: Sequence[Range], device: str, number: int) -> Range:
    """Return the fold of a group on ``device``; a group of one is its contribution, where it is."""
    if len(packed) == 1:
        return packed[0]
    arrived = [builder.send(source, device, number, _UP) for source in packed]
    leaf = builder.leaf_of(packed[0])
    target = builder.scratch(Role.PARTIAL, device, packed[0].length, leaf)
    return builder.combine(arrived, target, number, _COMBINE, final=False)


def _spread(builder: PlanBuilder, pack: Pack, result: Range, number: int, root_group: range, head: int | None) -> None:
    work = builder.work[pack.fragments[0].leaf]
    root_device = builder.device_of(result)
    builder.unpack(result, pack, number, _UNPACK)
    in_root_group = {work.sources[replica] for replica in root_group}
    others = [device for device in dict.fromkeys(work.sources) if device != root_device]
    relay = result
    head_device = root_device if head is None else work.sources[head]
    if head_device != root_device:
        relay = builder.deliver(result, pack, head_device, number, _BACK)
        builder.unpack(relay, pack, number, _UNPACK)
    for device in others:
        if device != head_device:
            source = result if device in in_root_group else relay
            here = builder.deliver(source, pack, device, number, _DOWN)
            builder.unpack(here, pack, number, _UNPACK)
