"""Folds host arrays into host arrays, by the native core where it can, else by NumPy; both give the same bits."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from treefold.backends import HostArray
from treefold.backends.numpy_fold import fold_block
from treefold.backends.plain_arithmetic import in_plain_arithmetic
from treefold.dtypes import INTEGERS, itemsize
from treefold.execution import native
from treefold.fold import Fold
from treefold.observing import warn
from treefold.reduce_op import ReduceOp

#: Elements that NumPy folds at a time: a block of each replica and its accumulator stay in the second-level cache.
_BLOCK = 1 << 15
#: Bits of float64's significand, and of the middle between two numbers of float32.
_DOUBLE_BITS, _MIDDLE_BITS = 53, 25

UNFINISHED = "treefold: the reduction ended before it was done, so what `out` holds now is undefined. Reduce again."


@dataclass(frozen=True, slots=True)
class Job:
    """Contributions of one shape, in replica order, and the arrays that take their fold.

    A target may be exactly the memory of one source; otherwise it must be disjoint from all of them.
    """

    dtype: str
    sources: Sequence[HostArray]
    targets: Sequence[HostArray]


def fold_batch(jobs: Sequence[Job], fold: Fold) -> None:
    """Fold every job and write its result into all its targets."""
    _warn_without_native()
    # Views and temporary arrays first: from the fold on, an error leaves targets half written.
    jobs = [_in_memory_order(job) for job in jobs]
    plain = [_made_plain(job, fold) for job in jobs]
    try:
        _fold_plain(jobs, plain, fold)
    except BaseException as error:  # Ctrl-C, or the error of a signal handler
        error.add_note(UNFINISHED)
        raise


def _fold_plain(jobs: Sequence[Job], plain: Sequence[Job], fold: Fold) -> None:
    by_core: list[Job] = []
    others: list[Job] = []
    for job in plain:
        serves = native.HAS_NATIVE and _made_dtype(job, fold) == fold.result_dtype(job.dtype)
        (by_core if serves else others).append(job)
    if by_core:
        _fold_natively(by_core, fold)
    for job in others:
        _fold_in_blocks(job, fold)
    _hand_over(jobs, plain)


@in_plain_arithmetic
def _hand_over(jobs: Sequence[Job], plain: Sequence[Job]) -> None:
    """Copy results from temporary arrays into the targets, rounded to their dtype."""
    for job, made in zip(jobs, plain, strict=True):
        if made is not job:
            for target, end in zip(job.targets, made.targets, strict=True):
                if end is not target:
                    target[...] = end


def fold_into(sources: Sequence[HostArray], targets: Sequence[HostArray], fold: Fold, dtype: str) -> None:
    """Fold one job."""
    fold_batch([Job(dtype, sources, targets)], fold)


def _fold_natively(jobs: Sequence[Job], fold: Fold) -> None:
    level, op, accumulate = native.level(), native.OPS[fold.op.name], native.ACCUMULATIONS[fold.accumulate]
    if fold.weights is None:
        items = [(native.DTYPES[job.dtype], job.sources, job.targets) for job in jobs]
        return native.fold(items, op, accumulate, level)
    # A weight of 0 leaves its replica out, NaN and all.
    kept = [index for index, weight in enumerate(fold.weights) if weight]
    items = [(native.DTYPES[job.dtype], [job.sources[index] for index in kept], job.targets) for job in jobs]
    packed = native.packed_weights([fold.weights[index] for index in kept])
    return native.fold(items, op, accumulate, level, *packed)


def _in_memory_order(job: Job) -> Job:
    """Return views with axes in memory order if that makes all arrays row-major, as for channels-last images.

    Elements are folded independently, so any order of elements is right if it is the same for all arrays.
    """
    first = job.sources[0]
    if first.ndim < 2 or first.flags.c_contiguous:  # noqa: PLR2004 - two axes have an order
        return job
    axes = sorted(range(first.ndim), key=lambda axis: -first.strides[axis])
    sources = [source.transpose(axes) for source in job.sources]
    targets = sources if job.targets is job.sources else [target.transpose(axes) for target in job.targets]
    turned = Job(job.dtype, sources, targets)
    return turned if all(map(_is_plain, (*sources, *targets))) else job


def _made_plain(job: Job, fold: Fold) -> Job:
    """Return the job on row-major, aligned arrays in native byte order, with temporary arrays where needed.

    A target of a narrower dtype than the fold's result gets a temporary array too, which is rounded into it later.
    """
    result = np.dtype(_made_dtype(job, fold))
    is_end = [_is_plain(end) and end.dtype == result for end in job.targets]
    if all(is_end) and (job.targets is job.sources or all(map(_is_plain, job.sources))):
        return job
    sources = [_plain(source) for source in job.sources]
    targets = [
        end if is_plain else np.empty(end.shape, result) for end, is_plain in zip(job.targets, is_end, strict=True)
    ]
    return Job(job.dtype, sources, targets)


def _made_dtype(job: Job, fold: Fold) -> str:
    """Return the dtype of the fold's first rounding: the targets' where a second rounding could show."""
    result = fold.result_dtype(job.dtype)
    if job.dtype not in INTEGERS or fold.op is not ReduceOp.MEAN or not job.targets:
        return result
    is_as_once = rounds_as_once(job.dtype, fold.divisor or len(job.sources))
    return result if is_as_once else job.targets[0].dtype.name


def rounds_as_once(dtype: str, divisor: int) -> bool:
    """Return whether a mean of integers, rounded to float64 and then to float32, equals one that is rounded once.

    JAX's means are float32 without x64. The two differ only if float64 rounds a mean to the middle between two numbers
    of float32. A mean that is not the middle is at least 1 / ``divisor`` away from it, in units of 1 or of the middle's
    last bit. Within these bounds, 53 bits show that distance.
    """
    return divisor << max(8 * itemsize(dtype), _MIDDLE_BITS) <= 1 << _DOUBLE_BITS


def _is_plain(array: HostArray) -> bool:
    flags = array.flags
    return flags.c_contiguous and flags.aligned and array.dtype.isnative


def _plain(array: HostArray) -> HostArray:
    plain: HostArray = np.require(array, array.dtype.newbyteorder("="), ["C", "A"])
    return plain


def _fold_in_blocks(job: Job, fold: Fold) -> None:
    result = _made_dtype(job, fold)
    sources: list[Any] = [source.reshape(-1) for source in job.sources]
    targets = [target.reshape(-1) for target in job.targets]
    for start in range(0, sources[0].size, _BLOCK):
        block = slice(start, start + _BLOCK)
        parts = [source[block] for source in sources]
        folded = fold_block(parts, fold, dtype=job.dtype, divisor=len(sources), result=result)
        for target in targets:
            target[block] = folded


@functools.cache
def _warn_without_native() -> None:
    if not native.HAS_NATIVE:
        warn(
            "treefold._native is not installed, so reductions run in NumPy: the same results, slower. "
            "Install treefold with a C++17 compiler at hand, or from a wheel.",
            stacklevel=2,
        )
