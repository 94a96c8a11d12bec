"""The base of all errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self


class TreefoldError(Exception):
    """Base of all errors that treefold raises on purpose."""

    # AutoGraph raises an error anew, of the same class and with its own trace, if it is made as an Exception is; of any
    # other class it makes an error that is no ValueError.
    if not TYPE_CHECKING:
        __init__ = Exception.__init__

    #: Whether all ranks of a group raise it, so that the group goes on.
    is_alike = False

    def alike(self) -> Self:
        """Return the error itself, which all ranks of a group raise alike.

        :meta private:
        """
        self.is_alike = True
        return self

    def in_pair(self, index: int) -> Self:
        """Return the same error, saying which pair of a batch it is about."""
        error: Self = type(self)(f"Pair {index}: {self}")
        return error
