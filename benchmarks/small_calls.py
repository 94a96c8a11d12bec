"""Measures small eager calls against the loop that a user would write, as ratios, above 1 where treefold is faster.

Each call sums 8 arrays of float32. Both sides take turns in short bursts. Ratios are formed within a turn, and their
median over the turns is shown with its quartiles. Every call makes its own ``PerReplica``, as a training step does. A
second table counts the functions that a first, a second and a third call of a kind run. A third one has the CPU time of
the host for batches on one GPU, which need not be there. Run it with ``python benchmarks/small_calls.py``; with ``gpu``
it prints that table alone.
"""

from __future__ import annotations

import contextlib
import importlib.util
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

import treefold
from treefold import HierarchicalCopyAllReduce, PerReplica, ReductionToOneDevice
from treefold.bench.work import Shapes, shapes_of_model
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


def burst(call: Callable[[], object], count: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the time of a call in a burst, in microseconds."""
    start = clock()
    for _ in range(count):
        call()
    return (clock() - start) / count * 1e6


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


@contextlib.contextmanager
def pretended_gpu() -> Iterator[None]:
    """Let PyTorch's host memory pass for a GPU's; tables are copied to the host, and nothing is launched."""
    import torch  # noqa: PLC0415 - only if it is here

    from treefold import backends  # noqa: PLC0415
    from treefold.backends.torch import TorchBackend  # noqa: PLC0415 - imports PyTorch
    from treefold.execution.cuda import one_device  # noqa: PLC0415 - as above

    class OnGpu(TorchBackend):
        def has_device(self, device: str) -> bool:
            return device == "gpu:0"

        def device_of(self, array: Any) -> str:  # noqa: ARG002
            return "gpu:0"

        def host_view(self, array: Any) -> None: ...

    def upload(key: Any, _device: Any, lengths: tuple[int, ...]) -> Any:
        return one_device._Upload(key, torch.tensor(key[1]), *one_device._blocks(lengths, "cpu"), {0})

    backends.loaded_backends()
    backend, stream = OnGpu(), SimpleNamespace(cuda_stream=0)
    # Functions, and not mocks, which take longer than what they replace.
    replaced = {
        one_device: {"_upload": upload, "_launch": lambda *_: 0},
        torch.cuda: {
            "device": lambda _: contextlib.nullcontext(),
            "is_current_stream_capturing": lambda: False,
            "current_stream": lambda _: stream,
        },
    }
    with (
        mock.patch.dict(backends._loaded, {"torch": backend}),
        mock.patch.dict(backends._of_rows, dict.fromkeys(backend.row_types, backend)),
        contextlib.ExitStack() as stack,
    ):
        for module, functions in replaced.items():
            stack.enter_context(mock.patch.multiple(module, **functions))
        yield


def on_one_gpu(name: str, shapes: Shapes) -> tuple[str, ...]:
    """Return a row of the third table: CPU time of the host for a batch in place, for tensors of these shapes."""
    import torch  # noqa: PLC0415 - only if it is here

    ops, count = ReductionToOneDevice(), _REPLICAS * len(shapes)
    values = [PerReplica([torch.zeros(shape) for _ in range(_REPLICAS)]) for shape in shapes]
    pairs = [(value, value) for value in values]
    with pretended_gpu():

        def call() -> object:
            return ops.batch_reduce("sum", pairs, out=values)

        for _ in range(20):
            call()
        times = [burst(call, 1 + 200 // count, time.thread_time) for _ in range(_TURNS)]
    low, middle, high = statistics.quantiles(times, n=4)
    parts = [f"{time / count:.2f}" for time in (middle, low, high)]
    return name, str(count), f"{middle:.0f}", parts[0], f"{parts[1]} to {parts[2]}"


def gpu_table() -> str:
    """Return the third table; empty without PyTorch and Triton."""
    if not (importlib.util.find_spec("torch") and importlib.util.find_spec("triton")):
        return ""
    shapes = {"8 × 64 KiB": ((16384,),), **{model: shapes_of_model(model) for model in ("resnet50", "bert-base")}}
    header = ["batch in place", "tensors", "µs a call", "µs a tensor", "quartiles"]
    return plain_table(header, [on_one_gpu(*one) for one in shapes.items()])


def main(words: Sequence[str]) -> None:
    """Run the measurements and print the tables."""
    if list(words) == ["gpu"]:
        print(gpu_table())
        return
    table = [measured(pair) for size, nbytes in _SIZES.items() for made in frameworks() for pair in made(size, nbytes)]
    print(f"{_REPLICAS} arrays of float32, SUM, microseconds per call")
    print(
        plain_table(["call", "size", "loop", "treefold", "ratio", "quartiles"], sorted(table, key=lambda row: row[0]))
    )
    print("\nfunctions of Python's that calls of one kind run")
    print(plain_table(["arrays", "first", "second", "third"], [(name, *counted(make)) for name, make in kinds()]))
    print("\nthe host's time on one GPU, without launches")
    print(gpu_table())


if __name__ == "__main__":
    main(sys.argv[1:])
