"""Measures small eager calls against the loop that a user would write, as ratios, above 1 where treefold is faster.

Each call sums 8 arrays of float32. Both sides take turns in short bursts. Ratios are formed within a turn, and their
median over the turns is shown with its quartiles. Every call makes its own ``PerReplica``, as a training step does. A
second table counts the functions that a first, a second and a third call of a kind run. Run it with ``python
benchmarks/small_calls.py``.
"""

from __future__ import annotations

import importlib.util
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

import treefold
from treefold import HierarchicalCopyAllReduce, PerReplica
from treefold.cli.tables import plain_table

_TURNS, _REPLICAS = 400, 8
_SIZES = {"64 B": 64, "4 KiB": 4096, "64 KiB": 65536}
_BURST_S = 200e-6


class Pair(NamedTuple):
    """A call of treefold and the loop beside it."""

    name: str
    size: str
    ours: Callable[[], object]
    theirs: Callable[[], object]


def rows(nbytes: int) -> list[np.ndarray[Any, Any]]:
    """Return the replicas' arrays: zeros, which repeated sums in place leave alone."""
    return [np.zeros(nbytes // 4, np.float32) for _ in range(_REPLICAS)]


def in_place(ops: HierarchicalCopyAllReduce, arrays: list[Any]) -> Callable[[], object]:
    """Return the call that reduces arrays in place."""

    def call() -> object:
        value = PerReplica(arrays)
        return ops.reduce("sum", value, value, out=value)

    return call


def numpy_pairs(size: str, nbytes: int) -> Iterator[Pair]:
    """Yield NumPy in place, and ``treefold.all_reduce`` into new arrays."""
    arrays = rows(nbytes)

    def loop() -> None:
        total = arrays[0]
        for array in arrays[1:]:
            total += array
        for array in arrays[1:]:
            array[...] = total

    def stacked() -> object:
        total = np.sum(np.stack(arrays), axis=0)
        return [total.copy() for _ in arrays]

    yield Pair("NumPy, in place", size, in_place(HierarchicalCopyAllReduce(), arrays), loop)
    yield Pair("NumPy, all_reduce into new arrays", size, lambda: treefold.all_reduce(arrays), stacked)


def torch_pairs(size: str, nbytes: int) -> Iterator[Pair]:
    """Yield PyTorch in place, and ``treefold.all_reduce`` into new tensors."""
    import torch  # noqa: PLC0415 - only if it is here

    tensors = [torch.from_numpy(row) for row in rows(nbytes)]

    def loop() -> None:
        total = tensors[0]
        for tensor in tensors[1:]:
            total.add_(tensor)
        for tensor in tensors[1:]:
            tensor.copy_(total)

    def stacked() -> object:
        total = torch.stack(tensors).sum(0)
        return [total.clone() for _ in tensors]

    yield Pair("PyTorch, in place", size, in_place(HierarchicalCopyAllReduce(), tensors), loop)
    yield Pair("PyTorch, all_reduce into new tensors", size, lambda: treefold.all_reduce(tensors), stacked)


def jax_pairs(size: str, nbytes: int) -> Iterator[Pair]:
    """Yield JAX. Its loop needs no copies, because arrays of JAX never change."""
    import jax  # noqa: PLC0415 - only if it is here
    import jax.numpy as jnp  # noqa: PLC0415 - as above

    arrays = [jnp.asarray(row) for row in rows(nbytes)]

    def loop() -> object:
        total = arrays[0]
        for array in arrays[1:]:
            total = total + array
        return jax.block_until_ready(total)

    yield Pair("JAX, all_reduce", size, lambda: treefold.all_reduce(arrays), loop)


def frameworks() -> Iterator[Callable[[str, int], Iterator[Pair]]]:
    """Yield the functions for the frameworks that are installed."""
    yield numpy_pairs
    if importlib.util.find_spec("torch"):
        yield torch_pairs
    if importlib.util.find_spec("jax"):
        yield jax_pairs


def burst(call: Callable[[], object], count: int) -> float:
    """Return the time of a call in a burst, in microseconds."""
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count * 1e6


def measured(pair: Pair) -> tuple[str, ...]:
    """Return a row of the table: times, and the ratio with its quartiles."""
    for _ in range(20):
        pair.ours()
        pair.theirs()
    count = max(2, round(_BURST_S * 1e6 / burst(pair.theirs, 20)))
    turns = [(burst(pair.theirs, count), burst(pair.ours, count)) for _ in range(_TURNS)]
    low, middle, high = statistics.quantiles([theirs / ours for theirs, ours in turns], n=4)
    theirs, ours = (statistics.median(column) for column in zip(*turns, strict=True))
    return pair.name, pair.size, f"{theirs:.1f}", f"{ours:.1f}", f"{middle:.2f}", f"{low:.2f} to {high:.2f}"


def counted(make: Callable[[], list[Any]]) -> Iterator[str]:
    """Yield the number of Python functions that the first three calls of a kind run."""
    ops = HierarchicalCopyAllReduce()
    for _ in range(3):
        value = PerReplica(make())
        found = 0

        def count(_frame: Any, event: str, _argument: object) -> None:
            nonlocal found
            found += event == "call"

        sys.setprofile(count)
        try:
            ops.reduce("sum", value, value)
        finally:
            sys.setprofile(None)
        yield str(found)


def kinds() -> Iterator[tuple[str, Callable[[], list[Any]]]]:
    """Yield a function that makes the replicas' arrays, for each framework that is installed."""
    yield "NumPy", lambda: rows(64)
    if importlib.util.find_spec("torch"):
        import torch  # noqa: PLC0415 - only if it is here

        yield "PyTorch", lambda: [torch.from_numpy(row) for row in rows(64)]
    if importlib.util.find_spec("jax"):
        import jax.numpy as jnp  # noqa: PLC0415 - only if it is here

        yield "JAX", lambda: [jnp.asarray(row) for row in rows(64)]


def main() -> None:
    """Run the measurements and print both tables."""
    table = [measured(pair) for size, nbytes in _SIZES.items() for made in frameworks() for pair in made(size, nbytes)]
    print(f"{_REPLICAS} arrays of float32, SUM, microseconds per call")
    print(
        plain_table(["call", "size", "loop", "treefold", "ratio", "quartiles"], sorted(table, key=lambda row: row[0]))
    )
    print("\nfunctions of Python's that calls of one kind run")
    print(plain_table(["arrays", "first", "second", "third"], [(name, *counted(make)) for name, make in kinds()]))


if __name__ == "__main__":
    main()
