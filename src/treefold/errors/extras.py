"""Packages that only some of treefold needs, and that are not installed."""

from __future__ import annotations

from typing import Self

from treefold.errors.base import TreefoldError


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
