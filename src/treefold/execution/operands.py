"""What an executor is handed beside the plan: the arrays of one leaf."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from treefold.backends import ArrayBackend


@dataclass(frozen=True, slots=True)
class Operand:
    """The contributions to one leaf, in replica order, and the shape of its result."""

    backend: ArrayBackend
    arrays: tuple[Any, ...]
    shape: tuple[int, ...]


#: For each leaf of a plan, its result on each component of the destination.
Results = list[tuple[Any, ...]]
