"""The base of all errors."""

from __future__ import annotations

from typing import Self


class TreefoldError(Exception):
    """Base of all errors that treefold raises on purpose."""

    def in_pair(self, index: int) -> Self:
        """Return the same error, saying which pair of a batch it is about."""
        return type(self)(f"Pair {index}: {self}")
