"""Folding host arrays into host arrays: the native core where it serves, NumPy elsewhere; the same bits from both."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence

import numpy as np

from treefold.backends import HostArray
from treefold.backends.numpy_fold import fold_block
from treefold.fold import Fold
from treefold.reduce_op import ReduceOp

try:
    from treefold._native import fold_sum

    _has_native = True
except ImportError:  # a pure-Python installation: right, but slower
    _has_native = False

#: What folds on this installation; plans name it.
KERNEL = "native" if _has_native else "numpy"

_BLOCK = 1 << 15  # elements: a block of each replica and its accumulator stay in the second-level cache


def fold_into(sources: Sequence[HostArray], targets: Sequence[HostArray], fold: Fold, dtype: str) -> None:
    """Fold arrays of one shape, in their order, and write the result into every target of that shape.

    A target may be one of the sources' own memory; beyond that it must be disjoint from them.
    """
    _warn_without_native()
    flat = [np.require(source, source.dtype.newbyteorder("="), ["C", "A"]).reshape(-1) for source in sources]
    # A strided, unaligned or byte-swapped target is folded into a plain stand-in and assigned.
    is_direct = [target.flags.carray and target.dtype.isnative for target in targets]
    ends = [
        t.reshape(-1) if ok else np.empty(t.size, t.dtype.newbyteorder("="))
        for t, ok in zip(targets, is_direct, strict=True)
    ]
    if _serves_native(fold, dtype):
        divisor = float(len(flat)) if fold.op is ReduceOp.MEAN else 1.0
        fold_sum(flat, ends, divisor)
    else:
        _fold_in_blocks(flat, ends, fold, dtype)
    for target, end, ok in zip(targets, ends, is_direct, strict=True):
        if not ok:
            target[...] = end.reshape(target.shape)


def _serves_native(fold: Fold, dtype: str) -> bool:
    is_plain = fold.accumulate == "wide" and fold.weights is None
    return _has_native and is_plain and dtype == "float32" and fold.op in {ReduceOp.SUM, ReduceOp.MEAN}


def _fold_in_blocks(sources: Sequence[HostArray], targets: Sequence[HostArray], fold: Fold, dtype: str) -> None:
    result = fold.result_dtype(dtype)
    for start in range(0, sources[0].size, _BLOCK):
        block = slice(start, start + _BLOCK)
        parts = [source[block] for source in sources]
        folded = fold_block(parts, fold, dtype=dtype, divisor=len(sources), result=result)
        for target in targets:
            target[block] = folded


@functools.cache
def _warn_without_native() -> None:
    if not _has_native:
        warnings.warn(
            "treefold._native is not installed, so reductions run in NumPy: the same results, slower. "
            "Install treefold with a C++17 compiler at hand, or from a wheel.",
            RuntimeWarning,
            stacklevel=2,
        )
