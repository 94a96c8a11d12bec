"""Two groups of devices, reduced side by side, then across: TensorFlow's hierarchical copy, for any device count.

TensorFlow takes groups of n // 2 and so loses the last replica of an odd count; here they are ⌈n/2⌉ and ⌊n/2⌋.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

from treefold.keyed import grouped
from treefold.plan.ir import Range
from treefold.planners.builder import PlanBuilder
from treefold.planners.method import Method
from treefold.planners.packing import Pack

_PACK, _HOME, _UP, _COMBINE, _ACROSS, _FINAL, _BACK, _DOWN, _UNPACK = range(9)


def two_level_roots(num_devices: int, index: int) -> tuple[int, int | None]:
    """Return the devices on which pack ``index`` is reduced: its root, and the head of the other group.

    Roots rotate from pack to pack, so that the packs spread over the devices; for even counts the pairs are
    TensorFlow's, which on a DGX-1 always share a link.
    """
    half = (num_devices + 1) // 2
    root = index % num_devices
    if num_devices == 1:
        return root, None
    # Device i of the first group faces device i of the second; where the first is one longer, its last faces the first.
    return root, half + root % (num_devices - half) if root < half else root - half


def add_two_level(builder: PlanBuilder, pack: Pack, index: int) -> None:
    """Reduce a pack along the two-level tree of its ``index`` and send the result back along it.

    The destinations must be the values' devices, in any order. Replicas that share a device are folded there before
    anything is sent. Between n devices this costs 2·(n − 1) copies of the pack.
    """
    number = builder.new_pack()
    work = builder.work[pack.fragments[0].leaf]
    replicas = grouped((device, replica) for replica, device in enumerate(work.sources))
    packed = [builder.packed_input(pack, number, replica, _PACK) for replica in range(len(work.sources))]
    devices = tuple(replicas)
    root, head = two_level_roots(len(devices), index)
    half = (len(devices) + 1) // 2
    # One device makes one group; its second half is empty.
    groups = [group for group in (devices[:half], devices[half:]) if group]
    # The head of a group folds it: the root in its own group, and in the other the device that faces the root.
    heads = [devices[root] if devices[root] in group else devices[head or 0] for group in groups]
    folds = packed
    if len(devices) > 1:
        # The groups fold at the same time. One device alone would fold here, and then once more below.
        parts = [
            _group_fold(builder, packed, {name: replicas[name] for name in group}, top, number)
            for group, top in zip(groups, heads, strict=True)
        ]
        folds = [builder.send(part, devices[root], number, _ACROSS) for part in parts]
    result = builder.combine(folds, builder.landing(pack, devices[root]), number, _FINAL, final=True)
    _spread(builder, pack, result, number, groups, heads)


def two_level() -> Method:
    """Return the method of TensorFlow's ``HierarchicalCopyAllReduce`` with one pack."""
    return Method((Fraction(1),), add_two_level, "two groups of devices")


def _group_fold(
    builder: PlanBuilder, packed: Sequence[Range], replicas: Mapping[str, Sequence[int]], device: str, number: int
) -> Range:
    """Return the fold on ``device`` of a group's replicas, listed by device; a single one is its own fold."""
    arrived: list[tuple[int, Range]] = []
    for name, own in replicas.items():
        held = [(replica, packed[replica]) for replica in own]
        if name != device:  # replicas on another device are folded there and travel as one
            held = [builder.partial_fold(held, number, _HOME)]
        arrived += [(first, builder.send(part, device, number, _UP)) for first, part in held]
    return builder.partial_fold(arrived, number, _COMBINE)[1]


def _spread(
    builder: PlanBuilder, pack: Pack, result: Range, number: int, groups: Sequence[Sequence[str]], heads: Sequence[str]
) -> None:
    """Send a result to the head of the other group, and from both heads to their groups."""
    root = builder.device_of(result)
    builder.unpack(result, pack, number, _UNPACK)
    for group, head in zip(groups, heads, strict=True):
        here = {head: result if head == root else builder.deliver(result, pack, head, number, _BACK)}
        here |= {name: builder.deliver(here[head], pack, name, number, _DOWN) for name in group if name != head}
        for name, part in here.items():
            if name != root:
                builder.unpack(part, pack, number, _UNPACK)
