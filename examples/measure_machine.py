"""Measure this machine: how fast it reduces, which links between GPUs are proved, and what memory treefold keeps.

Figures are of the machine and the minute; `treefold bench` measures with more care.
Run it: python examples/measure_machine.py
"""

import statistics
import time
from collections.abc import Callable

import numpy as np

import treefold

REPLICAS, ROUNDS = 4, 7


def median_s(work: Callable[[], object]) -> float:
    """Return the median time of some runs, after one that warms up."""
    times = []
    for _ in range(ROUNDS + 1):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def main() -> None:
    """Measure sizes from the caches to main memory, then show links and memory."""
    random = np.random.default_rng(seed=0)
    print(f"mean of {REPLICAS} float32 arrays, in place, beside a copy of as many bytes:")
    for kibibytes in (64, 1024, 8192):
        arrays = [random.normal(size=kibibytes * 256).astype(np.float32) for _ in range(REPLICAS)]
        copies = [np.empty_like(array) for array in arrays]
        reduced = median_s(lambda: treefold.all_reduce(arrays, "mean", out=arrays))  # noqa: B023 - called at once
        copied = median_s(lambda: [np.copyto(*pair) for pair in zip(copies, arrays, strict=True)])  # noqa: B023
        print(f"  {kibibytes:5d} KiB each: {reduced * 1e6:8.0f} us, a copy {copied * 1e6:8.0f} us")

    print("links between GPUs, proved byte by byte:")
    print(" ", treefold.verify_links())

    results = treefold.all_reduce(arrays)
    memory = treefold.host_memory_info()
    print(f"memory of {len(results)} results: {memory['used_bytes'] / 2**20:.1f} MiB in use")
    del results
    memory = treefold.host_memory_info()
    print(f"after they are gone: {memory['cached_bytes'] / 2**20:.1f} MiB kept for the next call, until empty_cache()")
    treefold.empty_cache()


if __name__ == "__main__":
    main()
