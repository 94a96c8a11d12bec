"""What all ranks bring, laid behind each other: sparse rows, and contributions that each rank folds by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from treefold.backends import HostArray
from treefold.backends.numpy import NumpyBackend
from treefold.calls.entry import Entry
from treefold.execution import Operand
from treefold.execution.host_fold import Job, fold_batch
from treefold.fold import Fold
from treefold.group.contributions import dense_shape_of, host_arrays
from treefold.plan.ir import Goal
from treefold.reduce_op import ReduceOp

_DEVICES = ("cpu:0",)
_NUMPY = NumpyBackend()


class Joined(NamedTuple):
    """All ranks' arrays of each leaf behind each other, and how many replicas they come from."""

    arrays: list[HostArray]
    replicas: list[int]


#: Lays the ranks' arrays behind each other: an entry, a description, axis, root. None off the root.
Join = Callable[[Entry, str, int, int | None], Joined | None]


def join_rows(join: Join, entry: Entry, is_dense: Sequence[bool], fold: Fold, root: int | None) -> list[Any]:
    """Return the sparse rows of all ranks, laid behind each other as in one process."""
    if all(is_dense):
        return []
    parts = tuple(part for part, dense in zip(entry.parts, is_dense, strict=True) if not dense)
    shapes = [f"IndexedSlices of {dense_shape_of(form)}" for form in entry.forms if form.num_parts > 1]
    description = f"all_reduce, {fold.op.name}, of {', '.join(shapes)}"
    joined = join(replace(entry, parts=parts), description, 0, root)
    if joined is None:
        return []
    arrays = []
    for part, array, replicas in zip(parts, joined.arrays, joined.replicas, strict=True):
        made = array
        if part.goal is Goal.ROWS and fold.op is ReduceOp.MEAN:
            result = part.operand.backend.result_dtype(fold, part.dtype)
            made = _NUMPY.scale(array.reshape(-1), replicas, result).reshape(array.shape)
        arrays.append(part.operand.backend.from_hosts([made], _DEVICES)[0])
    return arrays


def fold_joined(
    join: Join, entry: Entry, dtypes: Sequence[np.dtype[Any]], description: str, fold: Fold, root: int | None
) -> list[HostArray] | None:
    """Return the fold of all ranks' dense arrays, made by this rank, in dtypes of its own; None off the ``root``."""
    parts = []
    for part in entry.parts:
        flat = tuple([array.reshape(-1) for array in host_arrays(part)])
        parts.append(replace(part, operand=Operand(_NUMPY, flat, (-1,))))
    joined = join(replace(entry, parts=tuple(parts)), description, 0, root)
    if joined is None:
        return None
    jobs = []
    for part, array, replicas, dtype in zip(entry.parts, joined.arrays, joined.replicas, dtypes, strict=True):
        whole = array.reshape(replicas, *part.operand.shape)
        sources = [whole[index, ...] for index in range(replicas)]  # arrays also of no axis
        jobs.append(Job(part.dtype, sources, [np.empty(part.operand.shape, dtype)]))
    fold_batch(jobs, fold)
    return [job.targets[0] for job in jobs]
