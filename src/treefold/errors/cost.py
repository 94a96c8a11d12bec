"""Errors of plans that cannot be priced, and of measurements from which nothing follows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from treefold.errors.base import TreefoldError
from treefold.errors.words import counted, short, some

#: The values that the numbers of a simulation take, for one sentence.
_ALLOWED = {
    "chunk_bytes": 'a finite number of bytes above 0, None for whole packs, or "auto"',
    "launch_s": "a finite number of seconds, 0 or more",
    "nbytes": "a finite number of bytes, 0 or more",
    "reduce_bytes_per_s": "a number above 0; infinity means that folding costs nothing",
}


class SimulationError(TreefoldError, ValueError):
    """A plan and a machine that do not go together, or a number from which no time follows."""

    @classmethod
    def number(cls, **number: object) -> Self:
        """Refuse the value of one of the numbers above."""
        [(name, value)] = number.items()
        return cls(f"{name} is {short(value)}. It takes {_ALLOWED[name]}.")

    @classmethod
    def strangers(cls, devices: Sequence[str], known: Sequence[str]) -> Self:
        return cls(
            f"The plan uses {some(devices)}, and the topology has {some(known)}. Plan for devices of the topology, "
            f"or simulate on one that has them."
        )

    @classmethod
    def one_size(cls, count: int) -> Self:
        return cls(
            f"{counted(count, 'sample')} of one size or none say nothing of latency and bandwidth. Measure copies of "
            f"at least two sizes, a few bytes and some megabytes."
        )

    @classmethod
    def sample(cls, nbytes: float, seconds: float) -> Self:
        return cls(f"A copy of {nbytes!r} bytes in {seconds!r} seconds cannot be. Both are finite numbers, 0 or more.")

    @classmethod
    def no_slope(cls) -> Self:
        return cls(
            "Larger copies take no longer than small ones, so no bandwidth follows. Wait for each copy to end before "
            "the clock is read, or measure larger ones."
        )
