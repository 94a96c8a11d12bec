"""The parts of a movement: leaves, named buffers on devices, and steps of actions over ranges of buffers.

There are three actions: copy a range, combine ranges that hold contributions to the same elements, concatenate ranges.
Trees are the planners' notion and do not appear here; neither do arrays, frameworks or the reduce op.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Role(enum.Enum):
    """What a buffer is for."""

    INPUT = "input"
    OUTPUT = "output"
    SCRATCH = "scratch"
    #: Scratch that holds partial folds, whose dtype the fold decides (``Fold.partial_dtype``).
    PARTIAL = "partial"
    #: Scratch that holds results before they reach outputs.
    RESULT = "result"


class Goal(enum.Enum):
    """What each output of a leaf must hold in the end."""

    FOLD = "fold"  #: each element: every replica's contribution, exactly once
    ROWS = "rows"  #: all replicas' elements in replica order; divided by their number under MEAN (sparse values)
    GATHER = "gather"  #: all replicas' elements in replica order, as they are
    COPY = "copy"  #: the one input


@dataclass(frozen=True, slots=True)
class Leaf:
    """One array of the batch: its dtype, and what each of its outputs must hold."""

    dtype: str
    goal: Goal


@dataclass(frozen=True, slots=True)
class Buffer:
    """Named storage of ``length`` elements on a device.

    ``leaf`` is the index of the leaf whose dtype it has, and that an input or output belongs to. ``position`` is the
    replica of an input or the component of an output; -1 for scratch.
    """

    name: str
    device: str
    length: int
    role: Role
    leaf: int
    position: int = -1


@dataclass(frozen=True, slots=True)
class Range:
    """Elements ``start`` to ``stop`` of the buffer with index ``buffer``."""

    buffer: int
    start: int
    stop: int

    @property
    def length(self) -> int:
        """Number of elements."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy one range into another of the same length, on the same device or across a link."""

    source: Range
    target: Range
    pack: int

    @property
    def sources(self) -> tuple[Range, ...]:
        """The one range that it reads, as the other actions name theirs."""
        return (self.source,)


@dataclass(frozen=True, slots=True)
class Combine:
    """Fold ranges on one device into a range there, in the order given, which is replica order.

    ``final`` marks the fold that holds every contribution: there MEAN divides and the result is rounded.
    """

    sources: tuple[Range, ...]
    target: Range
    pack: int
    final: bool


@dataclass(frozen=True, slots=True)
class Concat:
    """Lay ranges on one device behind each other into a range there.

    ``final`` marks the concatenation that makes the result of a ROWS or GATHER leaf.
    """

    sources: tuple[Range, ...]
    target: Range
    pack: int
    final: bool = False


Action = Copy | Combine | Concat


@dataclass(frozen=True, slots=True)
class Step:
    """Actions that may run at once, or in any order."""

    actions: tuple[Action, ...]


@dataclass(frozen=True, slots=True)
class Hop:
    """One copy between two devices: in which step, for which pack, how many bytes in the leaf's dtype."""

    step: int
    pack: int
    source: str
    target: str
    nbytes: int
