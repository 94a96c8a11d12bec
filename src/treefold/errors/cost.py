"""What cannot be priced, and measurements from which nothing follows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from treefold.errors.base import TreefoldError
from treefold.errors.words import counted, short

_MANY = 6  # names that a sentence lists before it says how many there are


class SimulationError(TreefoldError, ValueError):
    """A plan and a machine that do not go together, or a number from which no time follows."""

    @classmethod
    def strangers(cls, devices: Sequence[str], known: Sequence[str]) -> Self:
        """The plan is for devices that the machine does not have."""
        return cls(
            f"The plan uses {_some(devices)}, and the topology has {_some(known)}. Plan for devices of the topology, "
            f"or simulate on one that has them."
        )

    @classmethod
    def nbytes(cls, value: object) -> Self:
        """A size that no value has."""
        return cls(f"nbytes is {short(value)}. It takes a finite number of bytes, 0 or more.")

    @classmethod
    def chunk_bytes(cls, value: object) -> Self:
        """A size that no chunk has."""
        return cls(
            f'chunk_bytes is {short(value)}. It takes a finite number of bytes above 0, None for whole packs, or "auto".'
        )

    @classmethod
    def reduce_rate(cls, value: object) -> Self:
        """A rate at which nothing is folded."""
        return cls(
            f"reduce_bytes_per_s is {short(value)}. It takes a number above 0; infinity means that folding costs nothing."
        )


def _some(names: Sequence[str]) -> str:
    if len(names) <= _MANY:
        return ", ".join(names)
    return f"{', '.join(names[: _MANY - 1])} … ({counted(len(names), 'device')})"
