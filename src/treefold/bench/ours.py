"""treefold's own side of a measurement: the arrays, the call, the check."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from treefold.bench.contents import Array, count_wrong, expected, fill, new_input, pattern
from treefold.bench.work import Work
from treefold.ops import CrossDeviceOps, HierarchicalCopyAllReduce, ReductionToOneDevice
from treefold.values import Mirrored, PerReplica

#: For each tensor, one array per replica.
Columns = list[list[Array]]


class Arrays:
    """The contributions to some work, and given arrays for its results."""

    def __init__(self, work: Work) -> None:
        """Allocate and fill the contributions."""
        self.work = work
        tensors = range(len(work.shapes))
        self.sources: Columns = [[new_input(work, r, t) for r in range(work.devices)] for t in tensors]
        self._given: Columns | None = None

    def given(self) -> Columns:
        """Return arrays of the results' shapes and dtype, the same ones every time, touched before."""
        if self._given is None:
            dtype = expected(self.work, 0).dtype
            self._given = [[np.zeros(shape, dtype) for _ in range(self.work.devices)] for shape in self.work.shapes]
            for array in (array for column in self._given for array in column):
                array[...] = 0
        return self._given

    def name_owners(self) -> None:
        """Fill the contributions with values that say whose they are."""
        for tensor, column in enumerate(self.sources):
            for replica, array in enumerate(column):
                fill(array, pattern(self.work, replica, tensor))

    def clear(self) -> None:
        """Fill the contributions with zeros, which repeated reductions in place leave as they are."""
        for array in (array for column in self.sources for array in column):
            array[...] = 0


def make_call(arrays: Arrays, work: Work) -> Callable[[], list[Mirrored]]:
    """Return the call that does ``work``, which may place or accumulate otherwise than the arrays' own."""
    values = [PerReplica(column) for column in arrays.sources]
    ops: CrossDeviceOps
    pairs: list[tuple[PerReplica, PerReplica | str]]
    if work.placement == "shared":
        ops = ReductionToOneDevice(accumulate=work.accumulate)
        pairs = [(value, "cpu:0") for value in values]
    else:
        ops = HierarchicalCopyAllReduce(accumulate=work.accumulate)
        pairs = [(value, value) for value in values]
    out: list[PerReplica] | None = None
    if work.placement == "in-place":
        out = values
    elif work.placement == "out-of-place":
        out = [PerReplica(column) for column in arrays.given()]
    op, is_batch = work.op, len(pairs) > 1
    value, destinations = pairs[0]
    target = None if out is None else out[0]
    if is_batch:
        return lambda: ops.batch_reduce(op, pairs, out=out)
    return lambda: [ops.reduce(op, value, destinations, out=target)]


def check_call(arrays: Arrays, work: Work) -> int:
    """Return how many elements of all results one call gets wrong; the contributions name their owners before it."""
    arrays.name_owners()
    results = make_call(arrays, work)()
    return sum(
        count_wrong(work, tensor, result) for tensor, mirrored in enumerate(results) for result in mirrored.values
    )
