"""What the memory allows: the traffic of a reduction with the arithmetic left out, and a plain copy."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

from treefold.bench.clock import Spread
from treefold.bench.contents import Array, expected
from treefold.bench.ours import Arrays
from treefold.bench.work import Work
from treefold.dtypes import REDUCIBLE, itemsize
from treefold.execution import native

_COPY_BYTES = 1 << 28


def make_traffic(arrays: Arrays, work: Work) -> Callable[[], None] | None:
    """Return a call that reads what ``work`` reads and writes what it writes, and does no arithmetic.

    It reads and writes the same arrays in the same order with the same threads; an exclusive or per byte keeps the
    reads from being optimised away, so zeros stay zeros and anything else becomes garbage. New results are stood in
    for by given ones. None where no such traffic can be asked for: without the native core, or if results are of
    another size than contributions.
    """
    if not native.HAS_NATIVE or expected(work, 0).dtype.itemsize != itemsize(work.dtype):
        return None
    targets = arrays.sources if work.placement == "in-place" else arrays.given()
    number, level = REDUCIBLE.index("uint8"), native.level()
    items: list[tuple[int, Sequence[Array], Sequence[Array]]] = [
        (number, _as_bytes(sources), _as_bytes(ends[: work.num_results]))
        for sources, ends in zip(arrays.sources, targets, strict=True)
    ]
    return lambda: native.traffic(items, level)


def measure_copy(threads: int, *, repeats: int = 9, nbytes: int = _COPY_BYTES) -> Spread:
    """Return the bandwidth of a plain copy by ``threads`` threads, read + written, in 10⁹ bytes per second."""
    source, target = np.ones(nbytes, np.uint8), np.ones(nbytes, np.uint8)
    parts = list(zip(np.array_split(source, threads), np.array_split(target, threads), strict=True))
    rates = []
    for _ in range(repeats):
        begin = time.perf_counter()
        workers = [threading.Thread(target=np.copyto, args=(end, start)) for start, end in parts[1:]]
        for worker in workers:
            worker.start()
        np.copyto(parts[0][1], parts[0][0])
        for worker in workers:
            worker.join()
        rates.append(2 * nbytes / (time.perf_counter() - begin) / 1e9)
    return Spread.of(rates)


def _as_bytes(arrays: Sequence[Array]) -> list[Array]:
    return [array.reshape(-1).view(np.uint8) for array in arrays]
