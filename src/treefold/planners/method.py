"""A method of an all-reduce: how it cuts values into packs, what plans a pack, and the movement that it makes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from treefold.devices import canonical_device
from treefold.plan import Movement
from treefold.plan.ir import Goal, Leaf
from treefold.planners.builder import LeafWork, PlanBuilder
from treefold.planners.packing import Item, Pack, by_dtype, split_by_shares

_LENGTH = 2**20  # elements: enough that packs have their shares to a millionth
AddPack = Callable[[PlanBuilder, Pack, int], None]


@dataclass(frozen=True, slots=True)
class Method:
    """A rule for how values travel between certain devices.

    Args:
        shares: The share of the values that each pack gets, in any unit.
        add_pack: Plans a pack, given the index of its share.
        words: The method's name in the text of plans.
        notes: The notes of its plans.

    """

    shares: tuple[Fraction, ...]
    add_pack: AddPack
    words: str
    notes: tuple[str, ...] = ()

    def movement(self, work: Sequence[LeafWork]) -> Movement:
        """Return the movement that all-reduces these leaves, those of each dtype cut into one pack per share.

        All leaves have the same sources and destinations; most methods need the same devices for both. Packs without
        elements are left out.

        Raises:
            PlanError: The leaves cannot be planned together.

        """
        builder = PlanBuilder(work)
        for items in by_dtype(Item(index, one.leaf.dtype, one.result_length) for index, one in enumerate(work)):
            # Packs without elements are left out, so ``add_pack`` gets the index of the share: each tree keeps its own.
            for number, pack in enumerate(split_by_shares(items, self.shares)):
                if pack.length:
                    self.add_pack(builder, pack, number)
        return builder.movement()


def one_array(devices: Sequence[str], length: int = _LENGTH, dtype: str = "float32") -> tuple[LeafWork, ...]:
    """Return the work of all-reducing one array of ``length`` elements, with a replica on every device."""
    names = tuple(canonical_device(device) for device in devices)
    return (LeafWork(Leaf(dtype, Goal.FOLD), (length,) * len(names), names, names),)
