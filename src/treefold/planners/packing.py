"""Packs: values of one dtype, or parts of them, that travel together; and the choice of them, by arguments and options.

Values without elements are in no pack.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from treefold.dtypes import itemsize
from treefold.errors import ArgumentError
from treefold.errors.words import short
from treefold.keyed import grouped


@dataclass(frozen=True, slots=True)
class Item:
    """One array of the batch that may be packed: its leaf index, dtype, and number of elements."""

    leaf: int
    dtype: str
    length: int


@dataclass(frozen=True, slots=True)
class Fragment:
    """Elements ``start`` to ``stop`` of a leaf, in row-major order."""

    leaf: int
    start: int
    stop: int

    @property
    def length(self) -> int:
        """Number of elements."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Pack:
    """Fragments of one dtype that travel together, in this order."""

    dtype: str
    fragments: tuple[Fragment, ...]

    @property
    def length(self) -> int:
        """Number of elements."""
        return sum(fragment.length for fragment in self.fragments)


def by_dtype(items: Iterable[Item]) -> list[list[Item]]:
    """Return the items of each dtype, dtypes in order of first appearance."""
    # A pack is folded as one array, so it has one dtype; all ranks meet dtypes in the same order.
    return list(grouped((item.dtype, item) for item in items).values())


def split_evenly(items: Sequence[Item], num_packs: int) -> tuple[Pack, ...]:
    """Lay the values behind each other and cut into ``num_packs`` packs whose sizes differ by at most one element.

    The larger packs come first; with fewer elements than packs, there are as many packs as elements.
    """
    total = sum(item.length for item in items)
    # All packs one size but for one element: the longest pack is what a call takes.
    size, larger = divmod(total, num_packs)
    lengths = [size + (index < larger) for index in range(min(num_packs, total))]
    packs, position = [], 0
    starts = _starts(items)
    for length in lengths:
        packs.append(_between(items, starts, position, position + length))
        position += length
    return tuple(packs)


def split_by_shares(items: Sequence[Item], shares: Sequence[Fraction]) -> tuple[Pack, ...]:
    """Lay the values behind each other and cut into one pack per share; the shares' sum is the whole.

    A pack may be without elements. Cuts are where the shares before them end, rounded to whole elements, so no pack is
    off its share by more than one element.
    """
    total, whole = sum(item.length for item in items), sum(shares, Fraction(0))
    starts, before = _starts(items), Fraction(0)
    cuts = [0]
    for share in shares:
        before += share
        # Each cut is rounded by itself, from the exact sum of shares before it. Rounded lengths would add up their
        # errors, and the last pack would get all of them. Fractions: all ranks and machines must cut alike, which
        # floats do not promise.
        cuts.append(round(total * before / whole))
    return tuple(_between(items, starts, start, stop) for start, stop in itertools.pairwise(cuts))


def up_to_bytes(items: Sequence[Item], max_bytes: int, itemsize: int) -> tuple[Pack, ...]:
    """Fill packs in input order up to ``max_bytes``; a value is never cut, so one that is larger is a pack alone.

    With 0, every value is.
    """
    packs: list[list[Fragment]] = []
    room = 0
    for item in items:
        nbytes = item.length * itemsize
        if not nbytes:
            continue
        # The first value of a pack always fits, however large: else a value above the limit would never be placed.
        if not packs or nbytes > room:
            packs.append([])
            room = max_bytes
        packs[-1].append(_whole(item))
        room -= nbytes
    return tuple(Pack(items[0].dtype, tuple(fragments)) for fragments in packs)


def aggregate_small(items: Sequence[Item], max_bytes: int, max_group: int, itemsize: int) -> tuple[Pack, ...]:
    """Group values of at most ``max_bytes`` into packs of at most ``max_group`` values; the others stay alone.

    Groups form in input order, wherever the small values stand; a pack stands where its first value does.
    """
    packs: list[list[Fragment]] = []
    group: list[Fragment] | None = None
    for item in items:
        if not item.length:
            continue
        if item.length * itemsize > max_bytes:
            packs.append([_whole(item)])
            continue
        if group is None or len(group) == max_group:
            group = []
            # The same list as ``group``: it stands in its place now, and grows as small values follow.
            packs.append(group)
        group.append(_whole(item))
    return tuple(Pack(items[0].dtype, tuple(fragments)) for fragments in packs)


def _whole(item: Item) -> Fragment:
    return Fragment(item.leaf, 0, item.length)


def _starts(items: Sequence[Item]) -> list[int]:
    return list(itertools.accumulate((item.length for item in items), initial=0))


def _between(items: Sequence[Item], starts: Sequence[int], start: int, stop: int) -> Pack:
    fragments = []
    # The last value that starts at or before the position: of values without elements there, the one that has some.
    # By bisection: thousands of values are cut into thousands of packs, and a scan for each would take their product.
    index = bisect.bisect_right(starts, start) - 1
    while start < stop:
        end = min(stop, starts[index + 1])
        # Values without elements lie between others at the same position, and have no fragment.
        if end > start:
            fragments.append(Fragment(items[index].leaf, start - starts[index], end - starts[index]))
        start, index = end, index + 1
    return Pack(items[0].dtype, tuple(fragments))


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
        return up_to_bytes(items, 0, nbytes)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
