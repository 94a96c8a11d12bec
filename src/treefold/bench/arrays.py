"""The arrays of a measurement: filled, reduced by treefold, and compared element by element with the exact oracle.

Replica r contributes 2**r times a small whole number that depends on the position, so that a wrong sum shows which
replica was lost or counted twice. Contents repeat after a prime number of positions. The exact oracle, which is slow
and obvious, computes one period, and every element is compared with it.

Timed calls run on values like gradients. In place, these are written again before each call. Small arrays in place hold
zeros instead, which repeated sums and products leave alone: writing them would cool the caches of the other threads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from treefold.bench.clock import Runner, clocked
from treefold.bench.work import Work
from treefold.dtypes import COMPLEX, INTEGERS, numpy_dtype
from treefold.errors import BenchError
from treefold.ops import CrossDeviceOps, HierarchicalCopyAllReduce, ReductionToOneDevice
from treefold.testing import fold_arrays
from treefold.values import Mirrored, PerReplica

Array = npt.NDArray[Any]

#: The period of values like gradients: a prime that is long beside the core's blocks of 256.
_LONG_PERIOD = 8209
#: Contributions of fewer bytes in all hold zeros in place.
_SMALL_BYTES = 8 << 20
_PRIMES = (7, 11, 17, 37, 67, 131, 257, 521, 1031)
#: Above these powers of two a dtype cannot hold the values, or the sum of all of them, any more.
_MOST_POWERS = {"float16": 8, "bfloat16": 8, "int8": 7, "uint8": 7, "int16": 12, "uint16": 12}
_BLOCK = 1 << 15


def dtype_of(name: str) -> np.dtype[Any]:
    """Return NumPy's dtype; bfloat16 is ml_dtypes'."""
    try:
        return numpy_dtype(name)
    except ImportError:
        raise BenchError.needs(f"--dtype {name}", "ml_dtypes") from None


def pattern(work: Work, replica: int, tensor: int) -> Array:
    """Return one period of the contribution of ``replica`` to tensor number ``tensor``."""
    dtype = dtype_of(work.dtype)
    period = next(prime for prime in _PRIMES if prime > work.devices or prime == _PRIMES[-1])
    positions = (np.arange(period) + tensor) % period
    if work.op in {"sum", "mean"}:
        values = (positions % 7 + 1) * 2 ** (replica % _MOST_POWERS.get(work.dtype, 21))
    else:
        # Replica r alone decides the positions ≡ r: the largest, the smallest, or a factor of two.
        is_own = positions == replica % period
        values = np.where(is_own, 1 if work.op == "min" else 2, 2 if work.op == "min" else 1)
    if work.dtype in COMPLEX and work.op != "product":
        values = values - 1j * values
    period_values: Array = values.astype(dtype)
    return period_values


def gradients(work: Work, replica: int) -> Array:
    """Return one period of a contribution like a gradient: 30 % zeros, and, of floats, a scale of its own."""
    random = np.random.default_rng(replica)
    values = random.normal(0, 1, _LONG_PERIOD) * random.binomial(1, 0.7, _LONG_PERIOD)
    scaled = np.abs(20 * values) if work.dtype in INTEGERS else values * 10.0 ** random.uniform(-3, 0)
    made: Array = scaled.astype(dtype_of(work.dtype))
    return made


def fill(array: Array, period: Array) -> None:
    """Repeat one period through an array."""
    flat, tile = array.reshape(-1), np.tile(period, max(1, _BLOCK // len(period)))
    for start in range(0, len(flat), len(tile)):
        block = flat[start : start + len(tile)]
        block[...] = tile[: len(block)]


def new_input(work: Work, replica: int, tensor: int, *, is_zero: bool = False) -> Array:
    """Return a new array with a replica's contribution, or with zeros that have been written."""
    array: Array = np.empty(work.shapes[tensor], dtype_of(work.dtype))
    fill(array, np.zeros(1, array.dtype) if is_zero else pattern(work, replica, tensor))
    return array


def expected(work: Work, tensor: int) -> Array:
    """Return one period of the result, by the exact oracle."""
    contributions = [pattern(work, replica, tensor) for replica in range(work.devices)]
    return fold_arrays(contributions, work.op, accumulate=work.accumulate)


def count_wrong(work: Work, tensor: int, result: Array) -> int:
    """Return how many elements of a result differ in any bit from the oracle's."""
    period = expected(work, tensor)
    if result.dtype != period.dtype or result.shape != work.shapes[tensor]:
        return int(np.prod(work.shapes[tensor]))
    bits = f"V{period.dtype.itemsize}"
    flat = np.ascontiguousarray(result).reshape(-1)
    tile = np.tile(period, max(1, _BLOCK // len(period)))
    wrong = 0
    for start in range(0, len(flat), len(tile)):
        block = flat[start : start + len(tile)]
        if block.tobytes() != tile[: len(block)].tobytes():
            wrong += int(np.count_nonzero(block.view(bits) != tile[: len(block)].view(bits)))
    return wrong


#: For each tensor, one array per replica.
Columns = list[list[Array]]


class Arrays:
    """The contributions to one work, and given arrays for its results."""

    def __init__(self, work: Work) -> None:
        """Allocate and fill the contributions."""
        self.work = work
        tensors = range(len(work.shapes))
        self.sources: Columns = [[new_input(work, r, t) for r in range(work.devices)] for t in tensors]
        self._gradients = [gradients(work, replica) for replica in range(work.devices)]
        self._given: Columns | None = None

    def given(self) -> Columns:
        """Return arrays of the results' shapes and dtype, the same ones every time; their memory has been written."""
        if self._given is None:
            dtype = expected(self.work, 0).dtype
            self._given = [[np.zeros(shape, dtype) for _ in range(self.work.devices)] for shape in self.work.shapes]
            for array in (array for column in self._given for array in column):
                array[...] = 0
        return self._given

    def name_owners(self) -> None:
        """Fill the contributions with values that name their replica."""
        for tensor, column in enumerate(self.sources):
            for replica, array in enumerate(column):
                fill(array, pattern(self.work, replica, tensor))

    @property
    def is_small(self) -> bool:
        """Whether timed calls in place hold zeros, which they leave as they are."""
        return self.work.nbytes * self.work.devices < _SMALL_BYTES

    def clear(self) -> None:
        """Fill the contributions with zeros."""
        for array in (array for column in self.sources for array in column):
            array[...] = 0

    def load_gradients(self) -> None:
        """Fill the contributions with values like gradients."""
        for column in self.sources:
            for array, period in zip(column, self._gradients, strict=True):
                fill(array, period)


def make_runner(arrays: Arrays, work: Work) -> Runner:
    """Return the runner that times calls of ``work``; in place, the contributions are written before each one."""
    is_written = work.placement == "in-place" and not arrays.is_small
    return clocked(make_call(arrays, work), before=arrays.load_gradients if is_written else lambda: None)


def make_call(arrays: Arrays, work: Work) -> Callable[[], list[Mirrored]]:
    """Return the call that does ``work``, which may differ from the arrays' own in placement and accumulation."""
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
    """Fill the contributions with values that name their owner, and return how many elements of one call are wrong."""
    arrays.name_owners()
    results = make_call(arrays, work)()
    return sum(
        count_wrong(work, tensor, result) for tensor, mirrored in enumerate(results) for result in mirrored.values
    )
