"""What a framework's arrays add to a small call: prints a table for 8 arrays of 1 KiB, calls of shapes seen before.

Each framework takes turns with NumPy; the difference is taken within a turn; the median and the quartiles are shown.
Run it with ``python benchmarks/framework_overhead.py``.
"""

from __future__ import annotations

import importlib.util
import os
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from treefold import PerReplica, ReductionToOneDevice
from treefold.report.tables import plain_table

_ROUNDS, _CALLS, _REPLICAS, _ELEMENTS = 300, 10, 8, 256


def burst(call: Callable[[], object]) -> float:
    """Return the time of a call in a burst, in microseconds."""
    start = time.perf_counter()
    for _ in range(_CALLS):
        call()
    return (time.perf_counter() - start) / _CALLS * 1e6


def calls(make: Callable[[], Any], *, is_mutable: bool) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield each way to call with a framework's arrays."""
    ops = ReductionToOneDevice()
    value = PerReplica([make() for _ in range(_REPLICAS)])
    yield "new results", lambda: ops.reduce("mean", value, value)
    if is_mutable:
        given = PerReplica([make() for _ in range(_REPLICAS)])
        yield "in place", lambda: ops.reduce("mean", value, value, out=value)
        yield "given results", lambda: ops.reduce("mean", value, value, out=given)


def frameworks() -> Iterator[tuple[str, Callable[[], Any], bool]]:
    """Yield a name, what makes an array, and whether arrays can be written, for each framework that is installed."""
    if importlib.util.find_spec("torch"):
        import torch  # noqa: PLC0415 - only if it is here

        yield "PyTorch, float32", lambda: torch.ones(_ELEMENTS), True
        yield "PyTorch, bfloat16", lambda: torch.ones(_ELEMENTS, dtype=torch.bfloat16), True
    if importlib.util.find_spec("jax"):
        import jax.numpy as jnp  # noqa: PLC0415 - only if it is here

        yield "JAX, float32", lambda: jnp.ones(_ELEMENTS), False
    if importlib.util.find_spec("tensorflow"):
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        import tensorflow as tf  # noqa: PLC0415 - only if it is here

        yield "TensorFlow, float32", lambda: tf.ones(_ELEMENTS), False


def main() -> None:
    """Measure every framework beside NumPy and print the differences."""
    ours = dict(calls(lambda: np.ones(_ELEMENTS, np.float32), is_mutable=True))
    rows = []
    for name, make, is_mutable in frameworks():
        for way, call in calls(make, is_mutable=is_mutable):
            for warm in (ours[way], call):
                warm()
            turns = [(burst(ours[way]), burst(call)) for _ in range(_ROUNDS)]
            low, middle, high = statistics.quantiles([theirs - base for base, theirs in turns], n=4)
            base, whole = (statistics.median(column) for column in zip(*turns, strict=True))
            rows.append((name, way, f"{base:.1f}", f"{whole:.1f}", f"{middle:.1f}", f"{low:.1f} to {high:.1f}"))
    print(f"{_REPLICAS} x 1 KiB, MEAN, microseconds per call")
    print(plain_table(["arrays", "way", "NumPy", "framework", "added", "quartiles"], rows))


if __name__ == "__main__":
    main()
