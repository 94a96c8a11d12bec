"""Errors of a benchmark before it starts, and the reasons why a library is not compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from treefold.errors.base import TreefoldError
from treefold.errors.commands import CommandError
from treefold.errors.words import counted, short


class BenchError(CommandError):
    """A benchmark was asked for something that it cannot do."""

    @classmethod
    def size(cls, option: str, got: str) -> Self:
        return cls(f"{option} got {short(got)}. It takes a number of bytes of at least 1, with K, M or G: 4K, 256M.")

    @classmethod
    def too_small(cls, option: str, got: int, dtype: str, least: int) -> Self:
        return cls(f"{option} got {counted(got, 'byte')}. One {dtype} takes {least}.")

    @classmethod
    def order(cls, begin: int, end: int) -> Self:
        return cls(f"-b got {counted(begin, 'byte')} and -e got {end}. The sweep goes up: -e must be at least -b.")

    @classmethod
    def least(cls, option: str, got: int, least: int) -> Self:
        return cls(f"{option} got {got}. It takes a whole number of at least {least}.")

    @classmethod
    def choice(cls, option: str, got: str, allowed: Sequence[str]) -> Self:
        return cls(f"{option} got {got!r}. It takes one of {', '.join(allowed)}.")

    @classmethod
    def placements(cls, given: Sequence[str]) -> Self:
        return cls(f"{', '.join(given)} all say where results go; give one of them.")

    @classmethod
    def not_with_ranks(cls, option: str, allowed: Sequence[str]) -> Self:
        return cls(f"{option} does not go with --ranks, which measures sums of float32. It takes {', '.join(allowed)}.")

    @classmethod
    def no_meaning(cls, op: str, dtype: str) -> Self:
        return cls(f"--op {op} has no meaning for --dtype {dtype}.")

    @classmethod
    def not_in_place(cls, op: str, dtype: str) -> Self:
        return cls(f"--op {op} of {dtype} is a float, which does not fit in place; give --new or --out-of-place.")

    @classmethod
    def needs(cls, option: str, module: str) -> Self:
        return cls(f'{option} needs {module}, which is not installed. Run pip install "treefold[bench]".')

    @classmethod
    def no_clone(cls, program: str) -> Self:
        return cls(
            f"--hosts runs {program}, which is in treefold's repository and not in the package. Run it in a clone, as"
            " root on Linux."
        )

    @classmethod
    def words_without_hosts(cls, word: str) -> Self:
        return cls(f"treefold bench got {short(word)}. Only --hosts takes words behind --; options begin with -.")

    @classmethod
    def memory(cls, name: str, needed: int, available: int) -> Self:
        return cls(
            f"{name} needs {needed / 1e9:.1f} GB and {available / 1e9:.1f} GB are free;"
            " take smaller sizes, fewer devices or fewer peers."
        )

    @classmethod
    def no_gpu(cls, version: str) -> Self:
        return cls(
            f"PyTorch {version} reports no GPU, so there is nothing to measure. Run this where there are a GPU, its"
            " driver and PyTorch's build for it (python -m pip install --upgrade torch)."
        )


class PeerError(TreefoldError, RuntimeError):
    """A library cannot do the work of a benchmark, or did not do it; the sentence is the note in its row."""

    @classmethod
    def missing(cls) -> Self:
        return cls("not installed")

    @classmethod
    def not_started(cls) -> Self:
        return cls("its processes did not start")

    @classmethod
    def ended(cls) -> Self:
        return cls("its process ended")

    @classmethod
    def late(cls, seconds: float) -> Self:
        return cls(f"no answer within {seconds:.0f} s")

    @classmethod
    def lacks(cls, library: str, what: str) -> Self:
        return cls(f"{library} has no {what}")

    @classmethod
    def separate(cls, owners: str) -> Self:
        """Refuse one result that all replicas share."""
        return cls(f"{owners} share no result")

    @classmethod
    def mean_of_integers(cls) -> Self:
        return cls("the mean of integers has another dtype")
