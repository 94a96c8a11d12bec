"""Sparse rows, as embeddings make them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, eq=False)
class IndexedSlices:
    """Rows ``values[i]`` of an array that is zero elsewhere, at ``indices[i]`` of its first axis.

    Reducing concatenates the rows in replica order and keeps duplicates, as TensorFlow does: the result is
    ``IndexedSlices``, too.

    Args:
        values: The rows, of shape (k, …).
        indices: Their positions, of shape (k,), int32 or int64. Duplicates are allowed: such rows add up.
        dense_shape: The whole array's shape; None if no one needs it.

    """

    values: Any
    indices: Any
    dense_shape: Any = None
