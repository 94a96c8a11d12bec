"""The choice of packs: by the constructor's arguments and the call's options."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from treefold.dtypes import itemsize
from treefold.errors import ArgumentError
from treefold.errors.words import short
from treefold.packing.pack import Item, Pack, aggregate_small, by_dtype, one_each, split_evenly, up_to_bytes


@dataclass(frozen=True, slots=True)
class PackingPolicy:
    """The arguments that decide how values are packed; the first that applies wins, in the order given here.

    ``bytes_per_pack`` > 0: packs of at most so many bytes. ``num_packs`` ≥ 1: that many packs of equal size;
    ``"auto"``: as many as there are devices, so that every device is the root of one. Both small-gradient limits > 0:
    small values are grouped. Else: no packing, every value travels alone.
    """

    num_packs: int | str = 0
    agg_small_grads_max_bytes: int = 0
    agg_small_grads_max_group: int = 0
    bytes_per_pack: int = 0

    @staticmethod
    def checked(owner: str, num_packs: object, max_bytes: object = 0, max_group: object = 10) -> PackingPolicy:
        """Return the policy of an ops class's constructor arguments.

        Raises:
            ArgumentError: one of them is not a whole number ≥ 0 (``num_packs`` may be ``"auto"``).

        """
        if not (isinstance(num_packs, str) and num_packs == "auto") and not _is_count(num_packs):
            raise ArgumentError.num_packs(owner, num_packs)
        limits = {"agg_small_grads_max_bytes": max_bytes, "agg_small_grads_max_group": max_group}
        for name, limit in limits.items():
            if not _is_count(limit):
                raise ArgumentError(
                    f"{owner} got {name}={short(limit)}. It takes a whole number, 0 or more; 0 turns grouping off."
                )
        return PackingPolicy(num_packs, max_bytes, max_group)  # type: ignore[arg-type] # checked above

    def with_bytes_per_pack(self, bytes_per_pack: int) -> PackingPolicy:
        """Return the policy of a call whose options say so many bytes per pack; 0 changes nothing."""
        return dataclasses.replace(self, bytes_per_pack=bytes_per_pack) if bytes_per_pack else self

    def packs(self, items: Sequence[Item], num_devices: int) -> tuple[Pack, ...]:
        """Return the packs of ``items``, dtype after dtype in order of first appearance."""
        return tuple(pack for group in by_dtype(items) for pack in self._packs(group, num_devices))

    def _packs(self, items: Sequence[Item], num_devices: int) -> tuple[Pack, ...]:
        nbytes = itemsize(items[0].dtype)
        # An option of the call overrides the constructor's arguments.
        if self.bytes_per_pack > 0:
            return up_to_bytes(items, self.bytes_per_pack, nbytes)
        # As many packs as devices: with rotating roots, every device folds one pack, and none waits for another's
        # arithmetic.
        num_packs = num_devices if self.num_packs == "auto" else int(self.num_packs)
        if num_packs >= 1:
            return split_evenly(items, num_packs)
        if self.agg_small_grads_max_bytes > 0 and self.agg_small_grads_max_group > 0:
            return aggregate_small(items, self.agg_small_grads_max_bytes, self.agg_small_grads_max_group, nbytes)
        return one_each(items)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
