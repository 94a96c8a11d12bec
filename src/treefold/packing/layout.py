"""How values of one dtype are laid behind each other and cut into packs."""

from __future__ import annotations

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


@dataclass(frozen=True, slots=True)
class PackLayout:
    """The packs of one dtype."""

    dtype: str
    packs: tuple[Pack, ...]
