"""Arrays to be packed, and packs: parts of values of one dtype that travel together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


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
    found: dict[str, list[Item]] = {}
    for item in items:
        found.setdefault(item.dtype, []).append(item)
    return list(found.values())
