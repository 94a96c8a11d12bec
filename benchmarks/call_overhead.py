"""Where the microseconds of a small call go: prints a table for 8 arrays of 64 KiB, in place, seen before.

Each part is run by itself, many times; the median counts. Run it with ``python benchmarks/call_overhead.py``.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np

from treefold import PerReplica, ReductionToOneDevice
from treefold.execution import kernel, native
from treefold.execution.kernel import Job, fold_batch
from treefold.fold import Fold
from treefold.ops import quick
from treefold.options import CommunicationOptions
from treefold.reduce_op import ReduceOp
from treefold.report.tables import plain_table

_ROUNDS, _CALLS = 300, 20


def microseconds(call: Callable[[], object]) -> float:
    """Return the median time of a call, in bursts, as a training loop makes it."""
    bursts = []
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        for _ in range(_CALLS):
            call()
        bursts.append((time.perf_counter() - start) / _CALLS * 1e6)
    return statistics.median(bursts)


def main() -> None:
    """Measure the parts of one call and print them."""
    arrays = [np.zeros(16_384, np.float32) for _ in range(8)]
    value, ops, fold = PerReplica(arrays), ReductionToOneDevice(), Fold(ReduceOp.SUM)
    options = CommunicationOptions()
    ops.reduce("sum", value, value, out=value)
    call = quick.glance("sum", [(value, value)], options, [value])
    if call is None:
        raise AssertionError(value)
    (prepared,) = ops._prepared._calls.values()
    columns = [column for seen in call.values for column in seen.columns]
    jobs = [Job("float32", columns[0], columns[0])]
    items = [(native.DTYPES["float32"], columns[0], columns[0])]
    parts = {
        "recognise the call: types, shapes, dtypes, devices": lambda: quick.glance(
            "sum", [(value, value)], options, [value]
        ),
        "look up what was prepared": lambda: ops._prepared._calls.get(call.key),
        "look at the memory: contiguous, writable, disjoint": lambda: native.may_fold_in_place(columns),
        "hand over to the native core": lambda: fold_batch(jobs, fold, are_plain=True),
        "   of that, the native call": lambda: native.fold(
            items, native.OPS["SUM"], native.ACCUMULATIONS["wide"], native.level()
        ),
        "wrap the result": lambda: quick._wrapped(prepared, call, columns),
        "the whole call": lambda: ops.reduce("sum", value, value, out=value),
    }
    rows = [(name, f"{microseconds(part):.1f}") for name, part in parts.items()]
    threads = native.num_threads()
    print(f"8 x 64 KiB float32, SUM in place, {threads} threads, {kernel.KERNEL} kernel")
    print(plain_table(["part", "us"], rows))


if __name__ == "__main__":
    main()
