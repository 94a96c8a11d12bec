"""Measures what a framework's arrays add to a small call, for 8 arrays of 1 KiB and calls of shapes seen before.

In every turn run a framework, NumPy, and the framework's own cheapest way to place the same results. The latter is
eight tensors for PyTorch, one array on each of eight devices for JAX, and one tensor for TensorFlow. Differences are
taken within a turn; medians and quartiles are shown. Run it with ``python benchmarks/framework_overhead.py``.
"""

from __future__ import annotations

import importlib.util
import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from treefold import PerReplica, ReductionToOneDevice
from treefold.cli.tables import plain_table

_ROUNDS, _CALLS, _REPLICAS, _ELEMENTS = 300, 10, 8, 256
_ROW = np.ones(_ELEMENTS, np.float32)


@dataclass(frozen=True)
class Framework:
    """``make`` returns the array of a replica; ``place`` makes results from a NumPy array."""

    name: str
    make: Callable[[int], Any]
    is_mutable: bool
    place: Callable[[], object]


def frameworks() -> Iterator[Framework]:
    """Yield each framework that is installed."""
    if importlib.util.find_spec("torch"):
        yield from pytorch()
    if importlib.util.find_spec("jax"):
        yield jax()
    if importlib.util.find_spec("tensorflow"):
        yield tensorflow()


def pytorch() -> Iterator[Framework]:
    """Yield PyTorch for two dtypes."""
    import torch  # noqa: PLC0415 - only if it is here

    for dtype in (torch.float32, torch.bfloat16):
        kind = {"dtype": dtype}
        place = lambda kind=kind: [torch.empty(_ELEMENTS, **kind) for _ in range(_REPLICAS)]  # noqa: E731
        name = f"PyTorch, {str(dtype).removeprefix('torch.')}"
        yield Framework(name, lambda _, kind=kind: torch.ones(_ELEMENTS, **kind), is_mutable=True, place=place)


def jax() -> Framework:
    """Return JAX with as many CPU devices as there are replicas."""
    import jax  # noqa: PLC0415 - only if it is here
    from jax.sharding import Mesh, NamedSharding, PartitionSpec  # noqa: PLC0415 - as above

    jax.config.update("jax_num_cpu_devices", _REPLICAS)
    devices = jax.local_devices(backend="cpu")
    everywhere = NamedSharding(Mesh(np.array(devices), ("x",)), PartitionSpec())

    def place() -> object:
        return [shard.data for shard in jax.device_put(_ROW, everywhere).addressable_shards]

    return Framework("JAX, float32", lambda index: jax.device_put(_ROW, devices[index]), is_mutable=False, place=place)


def tensorflow() -> Framework:
    """Return TensorFlow, eager."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import tensorflow as tf  # noqa: PLC0415 - only if it is here

    return Framework(
        "TensorFlow, float32", lambda _: tf.constant(_ROW), is_mutable=False, place=lambda: tf.constant(_ROW)
    )


def burst(call: Callable[[], object]) -> float:
    """Return the time of a call in a burst, in microseconds."""
    start = time.perf_counter()
    for _ in range(_CALLS):
        call()
    return (time.perf_counter() - start) / _CALLS * 1e6


def calls(make: Callable[[int], Any], *, is_mutable: bool) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield the calls with a framework's arrays."""
    ops = ReductionToOneDevice()
    value = PerReplica([make(index) for index in range(_REPLICAS)])
    yield "new results", lambda: ops.reduce("mean", value, value)
    if is_mutable:
        given = PerReplica([make(index) for index in range(_REPLICAS)])
        yield "in place", lambda: ops.reduce("mean", value, value, out=value)
        yield "given results", lambda: ops.reduce("mean", value, value, out=given)


def main() -> None:
    """Measure every framework beside NumPy and print the differences."""
    ours = dict(calls(lambda _: _ROW.copy(), is_mutable=True))
    rows = []
    for framework in frameworks():
        for way, call in calls(framework.make, is_mutable=framework.is_mutable):
            place = framework.place if way == "new results" else lambda: None
            for warm in (ours[way], call, place):
                warm()
            turns = [(burst(ours[way]), burst(call), burst(place)) for _ in range(_ROUNDS)]
            low, middle, high = statistics.quantiles([theirs - base for base, theirs, _ in turns], n=4)
            base, whole, placing = (statistics.median(column) for column in zip(*turns, strict=True))
            own = f"{placing:.1f}" if way == "new results" else "-"
            rows.append(
                (framework.name, way, f"{base:.1f}", f"{whole:.1f}", f"{middle:.1f}", f"{low:.1f} to {high:.1f}", own)
            )
    print(f"{_REPLICAS} x 1 KiB, MEAN, microseconds per call")
    print(plain_table(["arrays", "way", "NumPy", "framework", "added", "quartiles", "own placement"], rows))


if __name__ == "__main__":
    main()
