"""Rows: arrays of one leaf in every replica, read at once by the native core. Without it there are none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from treefold.compiled import HAS_NATIVE

if TYPE_CHECKING or HAS_NATIVE:
    from treefold._native import Row, new_arrays, new_tensors, read_arrays, read_tensors
else:

    class Row:
        """A class without objects: nothing is read natively."""

    def read_arrays(*_: object) -> None:
        """Return None: calls are not recognised."""

    read_tensors = new_arrays = new_tensors = read_arrays

__all__ = ["Row", "new_arrays", "new_tensors", "read_arrays", "read_tensors"]
