"""What cannot be priced, and measurements from which nothing follows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from treefold.errors.base import TreefoldError
from treefold.errors.words import counted, short, some


class SimulationError(TreefoldError, ValueError):
    """A plan and a machine that do not go together, or a number from which no time follows."""

    @classmethod
    def strangers(cls, devices: Sequence[str], known: Sequence[str]) -> Self:
        """The plan is for devices that the machine does not have."""
        return cls(
            f"The plan uses {some(devices)}, and the topology has {some(known)}. Plan for devices of the topology, "
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
            f"chunk_bytes is {short(value)}. It takes a finite number of bytes above 0, None for whole "
            'packs, or "auto".'
        )

    @classmethod
    def reduce_rate(cls, value: object) -> Self:
        """A rate at which nothing is folded."""
        return cls(
            f"reduce_bytes_per_s is {short(value)}. It takes a number above 0; infinity means that "
            f"folding costs nothing."
        )

    @classmethod
    def launch(cls, value: object) -> Self:
        """A launch cost that no call has."""
        return cls(f"launch_s is {short(value)}. It takes a finite number of seconds, 0 or more.")

    @classmethod
    def one_size(cls, count: int) -> Self:
        """Samples from which no line follows."""
        return cls(
            f"{counted(count, 'sample')} of one size or none say nothing of latency and bandwidth. Measure copies of "
            f"at least two sizes, a few bytes and some megabytes."
        )

    @classmethod
    def sample(cls, nbytes: float, seconds: float) -> Self:
        """A measurement that cannot be."""
        return cls(f"A copy of {nbytes!r} bytes in {seconds!r} seconds cannot be. Both are finite numbers, 0 or more.")

    @classmethod
    def no_slope(cls) -> Self:
        """Larger copies are no slower: something else was measured."""
        return cls(
            "Larger copies take no longer than small ones, so no bandwidth follows. Wait for each copy to end before "
            "the clock is read, or measure larger ones."
        )

    @classmethod
    def slower(cls, value: object) -> Self:
        """A factor by which no machine is slower."""
        return cls(f"slower is {short(value)}. It takes a finite number above 0: 1000 makes GB/s into MB/s.")

    @classmethod
    def only_folds(cls) -> Self:
        """A plan that does something else than fold."""
        return cls("Only plans that fold every leaf are emulated. Plan an all-reduce or a reduce of dense values.")

    @classmethod
    def input_array(cls, name: str, length: int, dtype: str) -> Self:
        """An array that is missing or another one than planned."""
        return cls(
            f"The plan's input {name} has {length} elements of {dtype}. Give one array like this per replica of every "
            f"leaf: inputs[leaf][replica]."
        )
