"""What the tools for tests find wrong."""

from __future__ import annotations

from treefold.errors.base import TreefoldError


class ConformanceError(TreefoldError, AssertionError):
    """A backend does not do what the interface says."""


class FakeOutOfMemoryError(TreefoldError, MemoryError):
    """A fake device that was told to fail has failed."""
