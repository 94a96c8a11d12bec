"""Whether the native core is there, with what groups need of it; only then may that be imported."""

from __future__ import annotations

from treefold.compiled import HAS_NATIVE

if HAS_NATIVE:
    from treefold._native import HAS_SHARED_MEMORY
else:
    HAS_SHARED_MEMORY = False

__all__ = ["HAS_SHARED_MEMORY"]
