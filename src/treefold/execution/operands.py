"""The arrays of one leaf, as executors get them beside the plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from treefold.backends import ArrayBackend, HostArray


@dataclass(frozen=True, slots=True)
class Operand:
    """The contributions to one leaf, in replica order, and the shape of its result.

    ``views``: NumPy views of the arrays in host memory, as far as the caller has made them.
    """

    backend: ArrayBackend
    arrays: tuple[Any, ...]
    shape: tuple[int, ...]
    views: tuple[HostArray | None, ...] = ()


#: For each leaf of a plan, its result on each component of the destination.
Results = list[tuple[Any, ...]]


def handed_over(inputs: Sequence[Operand], results: Results, out: Results | None) -> Results:
    """Return the results; with ``out``, copy them into its arrays once all are computed, and return ``out``."""
    if out is None:
        return results
    for operand, targets, arrays in zip(inputs, out, results, strict=True):
        for target, array in zip(targets, arrays, strict=True):
            operand.backend.assign(target, array)
    return out
