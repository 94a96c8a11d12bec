"""Packs: values of one dtype, or parts of them, that travel together; and how arguments and options choose them.

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
    # A pack is folded as one array, so it has one dtype; all ranks see the dtypes in the same order.
    return list(grouped((item.dtype, item) for item in items).values())


def split_evenly(items: Sequence[Item], num_packs: int) -> tuple[Pack, ...]:
    """Concatenate the values and cut them into ``num_packs`` packs; sizes differ by at most one element.

    The larger packs come first. With fewer elements than packs, every pack has one element.
    """
    total = sum(item.length for item in items)
    # Equal sizes to within one element: the largest pack decides the time of a call.
    size, larger = divmod(total, num_packs)
    lengths = [size + (index < larger) for index in range(min(num_packs, total))]
    packs, position = [], 0
    starts = _starts(items)
    for length in lengths:
        packs.append(_between(items, starts, position, position + length))
        position += length
    return tuple(packs)


def split_by_shares(items: Sequence[Item], shares: Sequence[Fraction]) -> tuple[Pack, ...]:
    """Concatenate the values and cut them into one pack per share; the shares may have any sum.

    A cut lies at the sum of the shares before it, rounded to a whole element, so every pack has its share to within one
    element. A pack may be empty.
    """
    total, whole = sum(item.length for item in items), sum(shares, Fraction(0))
    starts, before = _starts(items), Fraction(0)
    cuts = [0]
    for share in shares:
        before += share
        # Each cut is rounded by itself, from the exact sum of the shares before it: rounded lengths would leave the sum
        # of their errors to the last pack. Fractions, because all ranks and machines must cut alike.
        cuts.append(round(total * before / whole))
    return tuple(_between(items, starts, start, stop) for start, stop in itertools.pairwise(cuts))


def up_to_bytes(items: Sequence[Item], max_bytes: int, itemsize: int) -> tuple[Pack, ...]:
    """Fill packs in input order up to ``max_bytes``. Values are never cut: a larger one is a pack of its own.

    With ``max_bytes=0``, every value is a pack of its own.
    """
    packs: list[list[Fragment]] = []
    room = 0
    for item in items:
        nbytes = item.length * itemsize
        if not nbytes:
            continue
        # The first value of a pack may exceed the limit: else a larger one would never be placed.
        if not packs or nbytes > room:
            packs.append([])
            room = max_bytes
        packs[-1].append(_whole(item))
        room -= nbytes
    return tuple(Pack(items[0].dtype, tuple(fragments)) for fragments in packs)


def aggregate_small(items: Sequence[Item], max_bytes: int, max_group: int, itemsize: int) -> tuple[Pack, ...]:
    """Group values of at most ``max_bytes`` into packs of at most ``max_group`` values; each larger one is a pack.

    Groups form in input order, even across larger values; a pack has the position of its first value.
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
            # The same list as ``group``: it has its position now, and grows with later small values.
            packs.append(group)
        group.append(_whole(item))
    return tuple(Pack(items[0].dtype, tuple(fragments)) for fragments in packs)


def _whole(item: Item) -> Fragment:
    return Fragment(item.leaf, 0, item.length)


def _starts(items: Sequence[Item]) -> list[int]:
    return list(itertools.accumulate((item.length for item in items), initial=0))


def _between(items: Sequence[Item], starts: Sequence[int], start: int, stop: int) -> Pack:
    fragments = []
    # The last value that starts at or before the position, which skips empty values there. Bisection, because a scan
    # for each of thousands of packs over thousands of values would take their product.
    index = bisect.bisect_right(starts, start) - 1
    while start < stop:
        end = min(stop, starts[index + 1])
        # An empty value between two others has no fragment.
        if end > start:
            fragments.append(Fragment(items[index].leaf, start - starts[index], end - starts[index]))
        start, index = end, index + 1
    return Pack(items[0].dtype, tuple(fragments))


@dataclass(frozen=True, slots=True)
class PackingPolicy:
    """The arguments that decide how values are packed.

    The first rule that applies wins: ``bytes_per_pack``, ``num_packs``, the limits of small gradients. If none does,
    every value is a pack of its own.

    Args:
        num_packs: ≥ 1: this number of packs of equal size. ``"auto"``: one per device, so that each is the root of one.
        agg_small_grads_max_bytes: With the next one > 0: values of at most this many bytes are grouped.
        agg_small_grads_max_group: The most values in such a group.
        bytes_per_pack: > 0: the most bytes of a pack.

    """

    num_packs: int | str = 0
    agg_small_grads_max_bytes: int = 0
    agg_small_grads_max_group: int = 0
    bytes_per_pack: int = 0

    @staticmethod
    def checked(owner: str, num_packs: object, max_bytes: object = 0, max_group: object = 10) -> PackingPolicy:
        """Return the policy of an ops class's constructor arguments.

        Raises:
            ArgumentError: One of them is not a whole number ≥ 0 (``num_packs`` may be ``"auto"``).

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
        """Return the policy of a call with this option; 0 changes nothing."""
        return dataclasses.replace(self, bytes_per_pack=bytes_per_pack) if bytes_per_pack else self

    def packs(self, items: Sequence[Item], num_devices: int) -> tuple[Pack, ...]:
        """Return the packs of ``items``, one dtype after the other in order of first appearance."""
        return tuple(pack for group in by_dtype(items) for pack in self._packs(group, num_devices))

    def _packs(self, items: Sequence[Item], num_devices: int) -> tuple[Pack, ...]:
        nbytes = itemsize(items[0].dtype)
        # An option of the call overrides the constructor's arguments.
        if self.bytes_per_pack > 0:
            return up_to_bytes(items, self.bytes_per_pack, nbytes)
        # One pack per device: roots rotate, so that every device folds one pack, at the same time.
        num_packs = num_devices if self.num_packs == "auto" else int(self.num_packs)
        if num_packs >= 1:
            return split_evenly(items, num_packs)
        if self.agg_small_grads_max_bytes > 0 and self.agg_small_grads_max_group > 0:
            return aggregate_small(items, self.agg_small_grads_max_bytes, self.agg_small_grads_max_group, nbytes)
        return up_to_bytes(items, 0, nbytes)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
