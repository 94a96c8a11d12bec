"""The parts of a movement: leaves, named buffers on devices, and steps of actions over ranges of buffers.

There are three actions: copy a range, combine ranges that hold contributions to the same elements, concatenate ranges.
Trees exist in planners only; a movement knows neither these, nor arrays, frameworks or the reduce op.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Role(enum.Enum):
    """The purpose of a buffer."""

    INPUT = "input"
    OUTPUT = "output"
    SCRATCH = "scratch"
    #: Scratch that holds partial folds, in the dtype ``Fold.partial_dtype``.
    PARTIAL = "partial"
    #: Scratch that holds exact partial sums of contributions, in the form in which they travel between hosts
    #: (``fold.exact_bytes``).
    EXACT = "exact"
    #: Scratch that holds results before they reach outputs.
    RESULT = "result"


class Goal(enum.Enum):
    """The contents that each output of a leaf must have in the end."""

    FOLD = "fold"  #: Every replica's contribution to each element, exactly once.
    ROWS = "rows"  #: All replicas' rows in replica order; MEAN divides them by the number of replicas (sparse values).
    GATHER = "gather"  #: All replicas' elements in replica order, as they are.
    COPY = "copy"  #: The one input.


@dataclass(frozen=True, slots=True)
class Leaf:
    """One array of the batch: its dtype, and the goal of its outputs."""

    dtype: str
    goal: Goal


@dataclass(frozen=True, slots=True)
class Buffer:
    """Named storage of ``length`` elements on a device.

    Args:
        name: Unique among the buffers of a movement.
        device: Its device.
        length: The number of elements.
        role: Its purpose, which decides its dtype together with the leaf.
        leaf: The index of the leaf that gives it its dtype, and that an input or output belongs to.
        position: The replica of an input or the component of an output; -1 for scratch.

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
        """The one source, as a tuple, as the other actions have."""
        return (self.source,)


@dataclass(frozen=True, slots=True)
class Combine:
    """Fold ranges on one device into a range there, in the order given, which is replica order.

    The fold that holds every contribution is ``final``: it divides, for MEAN, and rounds the result.
    """

    sources: tuple[Range, ...]
    target: Range
    pack: int
    final: bool


@dataclass(frozen=True, slots=True)
class Concat:
    """Concatenate ranges on one device into a range there.

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
    """One copy between two devices: its step, its pack, and its bytes in the leaf's dtype."""

    step: int
    pack: int
    source: str
    target: str
    nbytes: int
