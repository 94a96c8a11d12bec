"""Methods in which contributions meet unfolded: on one device, on every device, or in the memory that holds them."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from treefold.devices import canonical_device
from treefold.plan.ir import Action, Combine, Concat, Copy, Goal, Range
from treefold.planners.builder import PlanBuilder
from treefold.planners.method import Method
from treefold.planners.packing import Fragment, Pack

#: The stages of all methods here; each uses those that it needs.
_PACK, _SEND, _COMBINE, _DELIVER, _UNPACK = range(5)
_NO_PACK = -1


def add_star(builder: PlanBuilder, pack: Pack, root: str) -> None:
    """Reduce a pack on the device ``root`` and copy the result to its destinations.

    The cost is one copy of the pack for each source that is not on ``root``, and one for each other destination device.
    """
    number = builder.new_pack()
    work = builder.work[pack.fragments[0].leaf]
    arrived = []
    for replica in range(len(work.sources)):
        packed = builder.packed_input(pack, number, replica, _PACK)
        arrived.append(builder.send(packed, root, number, _SEND))
    result = builder.combine(arrived, builder.landing(pack, root), number, _COMBINE, final=True)
    _spread(builder, result, pack, number)


def star(root: str) -> Method:
    """Return the method in which all values meet on ``root``, as in ``ReductionToOneDevice``."""
    device = canonical_device(root)
    words = f"all values meet on {device}"
    return Method((Fraction(1),), lambda builder, pack, _: add_star(builder, pack, device), words)


def two_shot(devices: Sequence[str]) -> Method:
    """Return the method in which each device reduces its n-th part and sends it to all: 2 hops, 2·(n − 1)·S/n each."""
    shares = (Fraction(1, len(devices)),) * len(devices)
    return Method(shares, lambda builder, pack, number: add_star(builder, pack, devices[number]), "two shots")


def add_concat(builder: PlanBuilder, leaf: int, root: str) -> None:
    """Concatenate a leaf's contributions on ``root`` and copy the result to its destinations."""
    work = builder.work[leaf]
    whole = Pack(work.leaf.dtype, (Fragment(leaf, 0, work.result_length),))
    if not work.result_length:
        return
    number = builder.new_pack()
    arrived = [
        builder.send(builder.inputs[leaf, replica], root, number, _SEND)
        for replica, length in enumerate(work.lengths)
        if length
    ]
    result = builder.landing(whole, root)
    builder.act(_COMBINE, Concat(tuple(arrived), result, number, final=True))
    _spread(builder, result, whole, number)


def add_broadcast(builder: PlanBuilder, leaf: int) -> None:
    """Copy a leaf's one contribution to every output."""
    if not builder.work[leaf].result_length:
        return
    number = builder.new_pack()
    work = builder.work[leaf]
    whole = Pack(work.leaf.dtype, (Fragment(leaf, 0, work.result_length),))
    _spread(builder, builder.inputs[leaf, 0], whole, number)


def _spread(builder: PlanBuilder, result: Range, pack: Pack, number: int) -> None:
    root = builder.device_of(result)
    for device in dict.fromkeys(builder.work[pack.fragments[0].leaf].destinations):
        here = result if device == root else builder.deliver(result, pack, device, number, _DELIVER)
        builder.unpack(here, pack, number, _UNPACK)


def add_one_shot(builder: PlanBuilder, pack: Pack) -> None:
    """Send every contribution to every destination, and fold them there in replica order.

    Between n devices this costs n·(n − 1) copies of the pack, none of which waits for another. No partial fold travels,
    so every destination gets the bits of one pass in replica order.
    """
    number = builder.new_pack()
    work = builder.work[pack.fragments[0].leaf]
    packed = [builder.packed_input(pack, number, replica, _PACK) for replica in range(len(work.sources))]
    # Every device folds all contributions in replica order, so all get the same bits without sending results.
    for device in dict.fromkeys(work.destinations):
        arrived = [builder.send(source, device, number, _SEND) for source in packed]
        result = builder.combine(arrived, builder.landing(pack, device), number, _COMBINE, final=True)
        builder.unpack(result, pack, number, _UNPACK)


def one_shot() -> Method:
    """Return the method in which every device sends everything to every other: 1 hop, (n − 1)·S per device."""
    return Method((Fraction(1),), lambda builder, pack, _: add_one_shot(builder, pack), "one shot")


def add_one_pass(builder: PlanBuilder, leaf: int) -> None:
    """Make a leaf's first output from all contributions at once, in replica order, and copy it to its other outputs.

    The devices must share one memory. Nothing is packed: the executor reads the arrays in place.
    """
    work = builder.work[leaf]
    if not work.result_length:
        return
    sources = tuple(builder.inputs[leaf, replica] for replica, length in enumerate(work.lengths) if length)
    first, *others = (builder.outputs[leaf, component] for component in range(len(work.destinations)))
    made: Action
    if work.leaf.goal is Goal.COPY:
        made = Copy(sources[0], first, _NO_PACK)
    elif work.leaf.goal is Goal.FOLD:
        made = Combine(sources, first, _NO_PACK, final=True)
    else:
        made = Concat(sources, first, _NO_PACK, final=True)
    builder.act(_COMBINE, made)
    for other in others:
        builder.act(_UNPACK, Copy(first, other, _NO_PACK))
