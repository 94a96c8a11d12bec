"""One tree of depth one: everything meets on one device and goes out from there."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from treefold.devices import canonical_device
from treefold.packing import Fragment, Pack
from treefold.plan.ir import Concat, Range
from treefold.planners.builder import PlanBuilder
from treefold.planners.method import Method

_PACK, _UP, _COMBINE, _DOWN, _UNPACK = range(5)


def add_star(builder: PlanBuilder, pack: Pack, root: str) -> None:
    """Reduce a pack on the device ``root`` and copy the result to its destinations.

    Costs one copy of the pack for each source that is not on ``root`` and for each other destination device.
    """
    number = builder.new_pack()
    work = builder.work[pack.fragments[0].leaf]
    arrived = []
    for replica in range(len(work.sources)):
        packed = builder.packed_input(pack, number, replica, _PACK)
        arrived.append(builder.send(packed, root, number, _UP))
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
    """Lay a leaf's contributions behind each other on ``root`` and copy the result to its destinations."""
    work = builder.work[leaf]
    whole = Pack(work.leaf.dtype, (Fragment(leaf, 0, work.result_length),))
    if not work.result_length:
        return
    number = builder.new_pack()
    arrived = [
        builder.send(builder.inputs[leaf, replica], root, number, _UP)
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
        here = result if device == root else builder.deliver(result, pack, device, number, _DOWN)
        builder.unpack(here, pack, number, _UNPACK)
