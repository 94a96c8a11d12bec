"""What a benchmark refuses before it starts, in one sentence each."""

from __future__ import annotations

from collections.abc import Sequence

from treefold.errors import TreefoldError
from treefold.errors.words import short


class BenchError(TreefoldError, ValueError):
    """A benchmark was asked for something that it cannot do."""

    @classmethod
    def size(cls, option: str, got: str) -> BenchError:
        """Refuse text that is no size."""
        return cls(f"{option} got {short(got)}. It takes a number of bytes of at least 1, with K, M or G: 4K, 256M.")

    @classmethod
    def too_small(cls, option: str, got: int, dtype: str, least: int) -> BenchError:
        """Refuse a size that does not hold one element."""
        return cls(f"{option} got {got} bytes. One {dtype} takes {least}.")

    @classmethod
    def order(cls, begin: int, end: int) -> BenchError:
        """Refuse a sweep that ends before it begins."""
        return cls(f"-b got {begin} bytes and -e got {end}. The sweep goes up: -e must be at least -b.")

    @classmethod
    def least(cls, option: str, got: int, least: int) -> BenchError:
        """Refuse a number that is too small."""
        return cls(f"{option} got {got}. It takes a whole number of at least {least}.")

    @classmethod
    def choice(cls, option: str, got: str, allowed: Sequence[str]) -> BenchError:
        """Refuse a word that is none of the allowed ones."""
        return cls(f"{option} got {got!r}. It takes one of {', '.join(allowed)}.")

    @classmethod
    def placements(cls, given: Sequence[str]) -> BenchError:
        """Refuse several answers to one question."""
        return cls(f"{', '.join(given)} all say where results go; give one of them.")

    @classmethod
    def no_meaning(cls, op: str, dtype: str) -> BenchError:
        """Refuse an op that a dtype has no meaning for."""
        return cls(f"--op {op} has no meaning for --dtype {dtype}.")

    @classmethod
    def not_in_place(cls, op: str, dtype: str) -> BenchError:
        """Refuse results that do not fit where the contributions are."""
        return cls(f"--op {op} of {dtype} is a float, which does not fit in place; give --new or --out-of-place.")

    @classmethod
    def not_installed(cls, peer: str, module: str) -> BenchError:
        """Refuse to leave out a peer that was named."""
        return cls(f"--against {peer} needs {module}, which is not installed; run: pip install 'treefold[bench]'")

    @classmethod
    def needs(cls, option: str, module: str) -> BenchError:
        """Refuse an option whose library is missing."""
        return cls(f"{option} needs {module}, which is not installed; run: pip install 'treefold[bench]'")

    @classmethod
    def memory(cls, name: str, needed: int, available: int) -> BenchError:
        """Refuse work that does not fit into memory."""
        return cls(
            f"{name} needs {needed / 1e9:.1f} GB and {available / 1e9:.1f} GB are free;"
            " take smaller sizes, fewer devices or fewer peers."
        )

    @classmethod
    def unwritable(cls, option: str, path: object, reason: str) -> BenchError:
        """Refuse a file that could not be written in the end."""
        return cls(f"{option} cannot write {str(path)!r}: {reason}.")

    @classmethod
    def not_a_run(cls, reason: str) -> BenchError:
        """Refuse text that is no benchmark run."""
        return cls(f"This is no run of treefold bench: {reason}.")

    @classmethod
    def no_gpu(cls, version: str) -> BenchError:
        """Refuse to measure a GPU that is not there."""
        return cls(
            f"PyTorch {version} reports no GPU, so there is nothing to measure. Run this where there are a GPU, its"
            " driver and PyTorch's build for it (python -m pip install --upgrade torch); --write-empty writes the table"
            " without figures."
        )
