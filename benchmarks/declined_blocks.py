"""Measure SUM in place of 8 replicas of 16 MiB, by the share of blocks that decline the first tier.

A fold goes through host memory in blocks of 256 elements. If an addition of a block is not exact in the wider
accumulator, the next tier adds the block again. Here one element of a declining block has two contributions with
exponents that are far apart. All shares take turns, and contributions are written again before each call, outside its
time. The first row has zeros in place of values like gradients. Times are the CPU time of one thread.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

from treefold.bench.arrays import Arrays, make_call
from treefold.bench.clock import Pace, clocked, interleave, spread_of_calls, spread_of_ratios
from treefold.bench.work import Work, shapes_of_size
from treefold.cli.tables import markdown_table
from treefold.execution import native

BLOCK = 256
#: How far apart two contributions are, so that the accumulator of the dtype cannot hold their sum.
_APART = {"float32": 2.0**-60, "bfloat16": 2.0**-40, "float64": 2.0**-70}
SHARES = (0.0, 0.01, 0.05, 0.25, 1.0)


def load(arrays: Arrays, share: float) -> None:
    """Write values like gradients, and let a share of the blocks decline."""
    arrays.load_gradients()
    first, second, *_ = arrays.sources[0]
    if share:
        places = slice(0, None, BLOCK * round(1 / share))
        first[places], second[places] = 1.0, _APART[arrays.work.dtype]


def measure(dtype: str) -> list[list[str]]:
    """Return a row for each share of declining blocks."""
    work = Work("declined", shapes_of_size(16 << 20, dtype), dtype=dtype, threads=1)
    native.set_num_threads(work.threads)
    arrays = Arrays(work)
    loads: dict[str, Callable[[], None]] = {"zeros": arrays.clear}
    loads |= {f"{share:.0%}".replace("%", " %"): functools.partial(load, arrays, share) for share in SHARES}
    call = make_call(arrays, work)
    times = interleave({name: clocked(call, time.thread_time, before=one) for name, one in loads.items()}, Pace(21, 2))
    base = times["0 %"]
    return [
        [
            dtype,
            name,
            f"{spread_of_calls(seconds).median * 1e9 / work.count:.2f}",
            f"{spread_of_ratios(seconds, base).median:.2f}",
        ]
        for name, seconds in times.items()
    ]


def main() -> None:
    """Print the table."""
    rows = [row for dtype in _APART for row in measure(dtype)]
    print(markdown_table(["dtype", "blocks that decline", "ns per element", "of the time without"], rows))


if __name__ == "__main__":
    main()
