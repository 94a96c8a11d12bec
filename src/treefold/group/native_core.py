"""What the native core has for groups; only where ``HAS_SHARED_MEMORY`` may the rest be used."""

from __future__ import annotations

from treefold.compiled import HAS_NATIVE

if HAS_NATIVE:
    from treefold._native import HAS_SHARED_MEMORY
else:
    HAS_SHARED_MEMORY = False

if HAS_SHARED_MEMORY:
    from treefold._native import (
        BLOB_BYTES,
        MOST_REPLICAS,
        SMALL_BYTES,
        GroupForm,
        GroupOutcome,
        HostGroup,
        create_segment,
    )

__all__ = [
    "BLOB_BYTES",
    "HAS_SHARED_MEMORY",
    "MOST_REPLICAS",
    "SMALL_BYTES",
    "GroupForm",
    "GroupOutcome",
    "HostGroup",
    "create_segment",
]
