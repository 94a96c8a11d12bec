"""Every device sends to every other: one hop, many bytes; the fastest method for the smallest values."""

from __future__ import annotations

from fractions import Fraction

from treefold.packing import Pack
from treefold.planners.builder import PlanBuilder
from treefold.planners.method import Method

_PACK, _SEND, _COMBINE, _UNPACK = range(4)


def add_one_shot(builder: PlanBuilder, pack: Pack) -> None:
    """Send every contribution to every destination, where all are folded, in replica order.

    Costs n·(n − 1) copies of the pack between n devices, none of which waits for another. All contributions meet as
    they are, so the result has the bits of one pass in replica order, on every destination.
    """
    number = builder.new_pack()
    work = builder.work[pack.fragments[0].leaf]
    packed = [builder.packed_input(pack, number, replica, _PACK) for replica in range(len(work.sources))]
    # Every device folds all contributions in replica order: all get the same bits, though nobody sends a result.
    for device in dict.fromkeys(work.destinations):
        arrived = [builder.send(source, device, number, _SEND) for source in packed]
        result = builder.combine(arrived, builder.landing(pack, device), number, _COMBINE, final=True)
        builder.unpack(result, pack, number, _UNPACK)


def one_shot() -> Method:
    """Return the method in which every device sends everything to every other: 1 hop, (n − 1)·S per device."""
    return Method((Fraction(1),), lambda builder, pack, _: add_one_shot(builder, pack), "one shot")
