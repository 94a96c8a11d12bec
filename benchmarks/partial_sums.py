"""Measures adding to ``treefold.Mean``, in turns with ``numpy.add(a, b, out=a)`` in float64 of as many elements.

Large arrays are 100 MB of float32 with normal numbers, on one thread and on all. One row is without weights. In
another, weights have many bits, so that two floats are held for each element. In a third, they have any exponent, so
that whole numbers are held. A second table adds trees of 10,000 leaves of 10 elements. Run it with ``python
benchmarks/partial_sums.py``.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import treefold
from treefold.cli.tables import plain_table
from treefold.execution.native import num_threads

_ELEMENTS, _LEAVES, _TURNS = 25_000_000, 10_000, 9


def seconds(call: Callable[[], object]) -> float:
    """Return the seconds of a call."""
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def large_rows(threads: int) -> list[list[str]]:
    """Return rows: the addends, milliseconds, the ratio to NumPy's addition, and the ratio of memory to the tree's."""
    treefold.set_num_threads(threads)
    random = np.random.default_rng(0)
    normal = random.normal(size=_ELEMENTS).astype(np.float32)
    spread = np.ldexp(normal[: _ELEMENTS // 10], random.integers(-100, 100, _ELEMENTS // 10, np.int32))
    wide, total = normal.astype(np.float64), np.zeros(_ELEMENTS)
    kinds: list[tuple[str, Any, int, int]] = [
        ("float32", normal, 1, 1),
        ("float32, weight of 40 bits", normal, (1 << 39) + 1, 1),
        ("float64", wide, 1, 1),
        ("float32 of any exponents, a tenth", spread, 1, 10),
    ]
    rows = []
    for name, value, weight, share in kinds:
        mean = treefold.Mean()
        for first in (value[::-1], np.roll(value, 1), value):
            mean.add(first, weight=weight)
        ours, theirs = [], []
        for _ in range(_TURNS):
            theirs.append(seconds(lambda: np.add(total, wide, out=total)))
            ours.append(seconds(lambda mean=mean, value=value, weight=weight: mean.add(value, weight=weight)))  # type: ignore[misc]
        ratio = statistics.median(one / other * share for one, other in zip(ours, theirs, strict=True))
        took = f"{1e3 * statistics.median(ours):.0f}"
        rows.append([str(threads), name, took, f"{ratio:.2f}", f"{mean.nbytes / value.nbytes:.2f}"])
    return rows


def leaf_rows() -> list[list[str]]:
    """Return rows: the framework, and microseconds a leaf."""
    rows = []
    makers: dict[str, Callable[[], Any]] = {"NumPy": lambda: np.ones(10, np.float32), "PyTorch": lambda: torch.ones(10)}
    for name, make in makers.items():
        tree = {f"leaf {index}": make() for index in range(_LEAVES)}
        mean = treefold.Mean()
        mean.add(tree)
        took = [seconds(lambda mean=mean, tree=tree: mean.add(tree)) for _ in range(10 * _TURNS)]  # type: ignore[misc]
        rows.append([name, f"{1e6 * statistics.median(took) / _LEAVES:.2f}"])
    return rows


def main() -> None:
    """Print both tables."""
    rows = [row for threads in (1, num_threads()) for row in large_rows(threads)]
    print(plain_table(["threads", "what is added", "ms", "times numpy.add", "trees of memory"], rows, (0, 1)))
    print()
    print(plain_table(["10,000 leaves of", "µs a leaf"], leaf_rows()))


if __name__ == "__main__":
    main()
