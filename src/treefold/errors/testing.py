"""Errors that the tools for tests raise."""

from treefold.errors.base import TreefoldError


class ConformanceError(TreefoldError, AssertionError):
    """A backend or a channel does not do what the interface says."""


class FakeOutOfMemoryError(TreefoldError, MemoryError):
    """A fake device that was told to fail has failed."""
