"""Measures the parts of a small call, and prints a table for 8 arrays of 64 KiB, in place, seen before.

Each part is run by itself, many times; the median counts. Run it with ``python benchmarks/call_overhead.py``.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from treefold import HierarchicalCopyAllReduce, PerReplica
from treefold.backends import loaded_backends
from treefold.calls.reader import read_pair
from treefold.cli.tables import plain_table
from treefold.execution import native

NUMPY = loaded_backends()[0]
_ROUNDS, _CALLS = 300, 20


def microseconds(call: Callable[[], object]) -> float:
    """Return the median time of a call, in bursts, as in a training loop."""
    bursts = []
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        for _ in range(_CALLS):
            call()
        bursts.append((time.perf_counter() - start) / _CALLS * 1e6)
    return statistics.median(bursts)


def main() -> None:
    """Measure the parts of one call and print them."""
    arrays = tuple(np.zeros(16_384, np.float32) for _ in range(8))
    value, ops = PerReplica(arrays), HierarchicalCopyAllReduce()
    ops.reduce("sum", value, value, out=value)
    pair = read_pair(value, value, value)
    (known,) = ops._calls._known._entries.values()
    rows: list[Any] = [pair.value]
    fold = native.RowFold((native.DTYPES["float32"],), native.OPS["SUM"], native.ACCUMULATIONS["exact"], native.level())
    parts = {
        "hold the arrays: PerReplica": lambda: PerReplica(arrays),
        "read the arrays, and make the key of the call": lambda: read_pair(value, value, value),
        "   of that, the native core's reading": lambda: NUMPY.read(arrays),
        "look up what was remembered, repeat, wrap": lambda: ops._calls.repeat_row("sum", pair),
        "   of that, the executor": lambda: known.repeat(rows, rows),
        "   of that, the native core's fold": lambda: fold.fold(rows, rows),
        "the whole call": lambda: ops.reduce("sum", value, value, out=value),
    }
    table = [(name, f"{microseconds(part):.1f}") for name, part in parts.items()]
    threads = native.num_threads()
    print(f"8 x 64 KiB float32, SUM in place, {threads} threads, {native.kernel()} kernel")
    print(plain_table(["part", "us"], table))


if __name__ == "__main__":
    main()
