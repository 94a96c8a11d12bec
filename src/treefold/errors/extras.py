"""What is not installed, or not as treefold needs it: packages that only some of it needs, and its native core."""

from __future__ import annotations

from typing import Self

from treefold.errors.base import TreefoldError

_BUILD = "Build it again: pip install --force-reinstall treefold, or pip install -e . in a checkout."


class MissingExtraError(TreefoldError, ImportError):
    """Something was asked for that needs a package that is not installed."""

    @classmethod
    def planner(cls) -> Self:
        """The planner's linear programs need SciPy."""
        return cls('Planning for a topology needs SciPy, which is not installed. Run pip install "treefold[planner]".')

    @classmethod
    def png(cls) -> Self:
        """Pictures in pixels need a renderer."""
        return cls(
            'A PNG needs resvg-py, which is not installed. Run pip install "treefold[png]", or draw an .svg or .html.'
        )


class InstallationError(TreefoldError, ImportError):
    """The parts of treefold that are installed do not belong together."""

    @classmethod
    def native_lacks(cls, name: str) -> Self:
        """The compiled module has no such name."""
        return cls(f"treefold._native was built from other sources than treefold: it lacks {name}. {_BUILD}")

    @classmethod
    def no_clock(cls) -> Self:
        """Nothing can be simulated without the compiled module."""
        return cls(
            "Simulating a plan needs treefold._native, which is not installed. "
            "Install treefold with a C++17 compiler at hand, or from a wheel."
        )

    @classmethod
    def native_knows(cls, table: str, names: tuple[str, ...]) -> Self:
        """The compiled module knows other dtypes, ops or ways to accumulate."""
        known = ", ".join(names)
        return cls(f"treefold._native was built from other sources than treefold: its {table} are {known}. {_BUILD}")
