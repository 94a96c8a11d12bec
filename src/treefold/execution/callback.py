"""Calling a user's ``accumulation_fn``, whose result is checked before it goes anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from treefold.backends import ArrayBackend
from treefold.errors import ArgumentError
from treefold.fold import Fold
from treefold.reduce_op import ReduceOp


def accumulate(backend: ArrayBackend, arrays: Sequence[Any], fold: Fold, path: str) -> Any:
    """Return the flat result of ``fold.accumulation_fn`` on whole arrays; MEAN divides it by their number.

    Raises:
        ArgumentError: it returned something else than one array of its inputs' framework, shape and dtype.

    """
    if fold.accumulation_fn is None:
        raise AssertionError(fold)
    shape, dtype = backend.shape_dtype(arrays[0])
    result = fold.accumulation_fn(list(arrays))
    where, expected = f" at {path}" if path else "", f"{dtype} {shape}"
    if not backend.owns(result):
        raise ArgumentError.accumulation_result(where, f"a {type(result).__name__}", expected)
    refusal = backend.refusal(result)
    if refusal is not None:
        raise ArgumentError.accumulation_result(where, refusal.got, expected)
    got_shape, got_dtype = backend.shape_dtype(result)
    if (got_shape, got_dtype) != (shape, dtype):
        raise ArgumentError.accumulation_result(where, f"{got_dtype} {got_shape}", expected)
    flat = backend.ravel_concat([result])
    return backend.scale(flat, len(arrays), backend.result_dtype(fold, dtype)) if fold.op is ReduceOp.MEAN else flat
