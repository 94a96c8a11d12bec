"""Exact partial sums: sums and means that can be interrupted, merged, saved and sent, and are rounded once."""

from treefold.partials.mean import Mean, Sum

__all__ = ["Mean", "Sum"]
