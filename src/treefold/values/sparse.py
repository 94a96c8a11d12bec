"""Sparse rows, as embeddings make them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, eq=False)
class IndexedSlices:
    """Rows ``values[i]`` of an array that is zero elsewhere, at ``indices[i]`` of its first axis.

    ``values``: (k, …); ``indices``: (k,), int32 or int64, duplicates allowed (they add up); ``dense_shape``: the whole
    array's shape, or None if nobody needs it. Reducing concatenates in replica order and keeps duplicates, as
    TensorFlow does: the result is again ``IndexedSlices``.
    """

    values: Any
    indices: Any
    dense_shape: Any = None
