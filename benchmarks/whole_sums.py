"""Measures exact sums over whole arrays beside a loop that only reads, and beside NumPy.

Running ``python benchmarks/whole_sums.py`` prints a table: milliseconds, and the speed as a share of the reading
loop's. Each figure is the median of rounds in which all take turns.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from time import perf_counter

import ml_dtypes
import numpy as np

from treefold import exact
from treefold.cli.tables import markdown_table
from treefold.execution import native

_KINDS = [(name, dtype) for dtype in ("float32", "float64", "bfloat16", "float16") for name in ("sum", "norm")]


def arrays(dtype: str, nbytes: int) -> dict[str, np.ndarray]:
    """Return normal numbers, and finite numbers of any exponent, which need the slow tier."""
    random, of = np.random.default_rng(1), np.dtype(getattr(ml_dtypes, dtype, dtype))
    count = nbytes // of.itemsize
    bits = random.integers(1 << 63, size=count, dtype=np.uint64) >> np.uint64(64 - 8 * of.itemsize)
    wild = bits.astype(f"u{of.itemsize}").view(of)
    with np.errstate(all="ignore"):
        wild[~np.isfinite(wild.astype(np.float64))] = 1
    return {"normal": random.normal(size=count).astype(of), "any exponents": wild}


def seconds(call: Callable[[], object]) -> float:
    """Return the seconds of a call."""
    begin = perf_counter()
    call()
    return perf_counter() - begin


def measure(name: str, array: np.ndarray, rounds: int) -> list[str]:
    """Return a row's figures: read, exact, the share, and NumPy."""
    memory = array.view(np.uint8)
    by_numpy = np.linalg.norm if name == "norm" else np.sum
    calls: list[Callable[[], object]] = [
        lambda: native.traffic([(native.DTYPES["uint8"], [memory], [])], native.level()),
        lambda: getattr(exact, name)(array),
        lambda: by_numpy(array),
    ]
    with np.errstate(all="ignore"):
        times = [[seconds(call) for call in calls] for _ in range(rounds)]
    read, own, other = (statistics.median(column) * 1e3 for column in zip(*times, strict=True))
    share = statistics.median(row[0] / row[1] for row in times)
    return [f"{read:.1f}", f"{own:.1f}", f"{share:.2f}", f"{other:.1f}"]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=64, help="size of an array")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("-n", "--rounds", type=int, default=25)
    arguments = parser.parse_args()
    native.set_num_threads(arguments.threads)
    rows = [
        [f"{name} of {dtype}", data, *measure(name, array, arguments.rounds if data == "normal" else 3)]
        for name, dtype in _KINDS
        for data, array in arrays(dtype, arguments.mib << 20).items()
    ]
    print(markdown_table(["", "numbers", "read, ms", "exact, ms", "exact / read", "NumPy, ms"], rows))


if __name__ == "__main__":
    main()
