"""How many elements of sums are wrong, and how many change with the order of the replicas, in every library.

``python benchmarks/right_numbers.py`` writes ``results/right-numbers-<date>.md`` and the README's picture. A sum is
right if it is the exact value, rounded once. The oracle is ``math.fsum``, exact for float64; where its result is
halfway between two numbers of a narrower dtype, it is asked again on which side of that the sum is.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import ml_dtypes
import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

import result_pages
import treefold
from memory_bench.libraries import find_mpiexec
from treefold.cli.tables import markdown_table

Array = npt.NDArray[Any]
Reduction = Callable[[list[Array]], Array]

REPLICAS = 8
_PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "right_numbers.svg"
_DTYPES = {"bfloat16": np.dtype(ml_dtypes.bfloat16), "float32": np.dtype("float32"), "float64": np.dtype("float64")}
#: What a rank of gloo or MPI does: it reads its row of a file, and rank 0 writes the sum.
_RANK = "TREEFOLD_RIGHT_NUMBERS"


class Count(NamedTuple):
    """The shares of elements that one library got wrong, or changed; None if it lacks the dtype."""

    library: str
    data: str
    dtype: str
    wrong: float | None
    changed: float | None


def gradients(size: int, dtype: np.dtype[Any]) -> list[Array]:
    """Return contributions like gradients: each replica has a scale of its own, and a third of them are 0."""
    random = np.random.default_rng(1)
    scales = 10.0 ** random.uniform(-4, 0, (REPLICAS, 1))
    values = random.normal(0, 1, (REPLICAS, size)) * scales * (random.random((REPLICAS, size)) > 1 / 3)
    return list(values.astype(dtype))


def cancelling(size: int, dtype: np.dtype[Any]) -> list[Array]:
    """Return contributions with large parts that cancel, and small parts that remain."""
    random = np.random.default_rng(2)
    half = random.normal(0, 1, (REPLICAS // 2, size)) * 2.0 ** random.integers(0, 20, (REPLICAS // 2, size))
    rest = random.normal(0, 1, (REPLICAS // 2, size))
    values = np.concatenate([half, rest - half]).astype(dtype)
    return list(random.permuted(values, axis=0))


def exact_sums(parts: list[Array]) -> Array:
    """Return the exact sums, rounded once."""
    columns = list(zip(*(part.astype(np.float64).tolist() for part in parts), strict=True))
    doubles = np.array([math.fsum(column) for column in columns])
    sums = _rounded(doubles, parts[0].dtype)
    if parts[0].dtype == np.float64:
        return sums
    ends = (_rounded(np.nextafter(doubles, end), sums.dtype) for end in (-np.inf, np.inf))
    low, high = (end.astype(np.float64) for end in ends)
    for index in np.flatnonzero((low != high) & (doubles == (low + high) / 2)):
        beyond = math.fsum((*columns[index], -doubles[index]))
        if beyond:
            sums[index] = _rounded(np.nextafter(doubles[[index]], math.copysign(math.inf, beyond)), sums.dtype)[0]
    return sums


def _rounded(doubles: Array, dtype: np.dtype[Any]) -> Array:
    """Round float64 once. ml_dtypes goes through float32 to bfloat16, so the lost part is kept in the last bit."""
    if dtype.name == "bfloat16":
        bits, lost = doubles.view(np.uint64), np.uint64((1 << 29) - 1)
        doubles = ((((bits & lost) + lost) | bits) & ~lost).view(np.float64)
    return doubles.astype(dtype)


def by_numpy(parts: list[Array]) -> Array:
    """Add one after the other, as a loop does."""
    total = parts[0].copy()
    for part in parts[1:]:
        total += part
    return total


def by_torch(parts: list[Array]) -> Array:
    """Sum a stack of tensors."""
    import torch  # noqa: PLC0415 - an extra

    if parts[0].dtype.name != "bfloat16":
        return torch.stack([torch.from_numpy(part) for part in parts]).sum(0).numpy()
    tensors = [torch.from_numpy(part.view(np.int16)).view(torch.bfloat16) for part in parts]
    return torch.stack(tensors).sum(0).view(torch.int16).numpy().view(parts[0].dtype)


def by_jax(parts: list[Array]) -> Array:
    """Sum a stack of arrays."""
    import jax  # noqa: PLC0415 - an extra

    with jax.enable_x64(True):  # noqa: FBT003 - JAX's own signature
        return np.asarray(jax.numpy.stack(parts).sum(0))


def by_tensorflow(parts: list[Array]) -> Array:
    """Reduce as ``tf.distribute.ReductionToOneDevice`` does on one machine."""
    import tensorflow as tf  # noqa: PLC0415 - an extra

    return np.asarray(tf.add_n([tf.constant(part) for part in parts]))


def by_treefold(parts: list[Array]) -> Array:
    """Reduce in one process."""
    return treefold.all_reduce(parts)[0]


def by_gloo(parts: list[Array]) -> Array:
    """Reduce between as many processes by gloo."""
    return _by_ranks(parts, "gloo", None)


def by_mpi(parts: list[Array]) -> Array:
    """Reduce between as many processes by MPI's all-reduce."""
    return _by_ranks(parts, "mpi", find_mpiexec())


LIBRARIES: dict[str, Reduction] = {
    "NumPy": by_numpy,
    "PyTorch": by_torch,
    "JAX": by_jax,
    "TensorFlow": by_tensorflow,
    "gloo": by_gloo,
    "MPICH": by_mpi,
    "treefold": by_treefold,
}


def _by_ranks(parts: list[Array], engine: str, launcher: str | None) -> Array:
    with tempfile.TemporaryDirectory() as name:
        folder, dtype = Path(name), parts[0].dtype
        np.save(folder / "parts.npy", np.stack(parts).view(f"u{dtype.itemsize}"))
        task = {_RANK: f"{engine} {dtype.name} {folder}"}
        program = [sys.executable, str(Path(__file__).resolve())]
        commands = [[launcher, "-n", str(REPLICAS), *program]] if launcher else [program] * REPLICAS
        ranks = [
            subprocess.Popen(command, env=os.environ | task | {"RANK": str(rank)})  # noqa: S603 - ours
            for rank, command in enumerate(commands)
        ]
        if sum(rank.wait() for rank in ranks):
            raise TypeError(dtype)
        return np.load(folder / "sum.npy").view(dtype)


def rank() -> None:
    """Reduce this rank's row with the others'."""
    engine, name, folder = os.environ[_RANK].split(" ", maxsplit=2)
    rows = np.load(Path(folder) / "parts.npy", mmap_mode="r")
    if engine == "mpi":
        from mpi4py import MPI  # noqa: PLC0415 - an extra

        index = MPI.COMM_WORLD.rank
        own = rows[index].view(_DTYPES[name]).copy()
        MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, own)
    else:
        import torch  # noqa: PLC0415 - an extra
        from torch import distributed  # noqa: PLC0415 - an extra

        index = int(os.environ["RANK"])
        torch.set_num_threads(1)
        distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=index, world_size=REPLICAS)
        signed = torch.from_numpy(rows[index].view(f"i{rows.itemsize}").copy())
        own = signed.view(getattr(torch, name))
        distributed.all_reduce(own)
        own = signed.numpy()
        distributed.barrier()
        distributed.destroy_process_group()
    if index == 0:
        np.save(Path(folder) / "sum.npy", own.view(f"u{rows.itemsize}"))


def measure(size: int) -> Iterator[Count]:
    """Count for every library, kind of data and dtype."""
    order = np.random.default_rng(3).permutation(REPLICAS)
    for data, make in {"like gradients": gradients, "with cancellation": cancelling}.items():
        for name, dtype in _DTYPES.items():
            parts = make(size, dtype)
            right = exact_sums(parts)
            for library, reduce in LIBRARIES.items():
                if library == "MPICH" and name == "bfloat16":  # MPI has no such dtype
                    yield Count(library, data, name, None, None)
                    continue
                found, again = (
                    _bits(reduce([part.copy() for part in order])) for order in (parts, [parts[r] for r in order])
                )
                yield Count(library, data, name, np.mean(found != _bits(right)), np.mean(found != again))
                print(f"{data}, {name}: {library}", file=sys.stderr)


def _bits(array: Array) -> Array:
    return array.view(f"u{array.dtype.itemsize}")


def table_of(counts: list[Count], data: str) -> str:
    """Return a row for each library, and two columns for each dtype."""
    header = ["library", *(f"{name}: {what}" for name in _DTYPES for what in ("wrong", "changed"))]
    rows = []
    for library in LIBRARIES:
        mine = [count for count in counts if (count.library, count.data) == (library, data)]
        rows.append([library, *(_percent(share) for count in mine for share in (count.wrong, count.changed))])
    return markdown_table(header, rows)


def _percent(share: float | None) -> str:
    if share is None:
        return "-"
    return f"{share:.1%}".replace("%", " %") if share else "0"


def draw(counts: list[Count], path: Path) -> None:
    """Draw the shares of float32 like gradients, a bar for what is wrong and one for what changes."""
    mine = [c for c in counts if (c.data, c.dtype) == ("like gradients", "float32")]
    # Narrow, so that it can be read on a telephone.
    figure = Figure(figsize=(4.8, 3.6), layout="constrained")
    axis = figure.subplots()
    places = np.arange(len(mine))[::-1]
    bars = (("not the exact sum, rounded once", "#dc2626", 0.2), ("other bits in another order", "#f59e0b", -0.2))
    for (label, colour, shift), shares in zip(bars, ([c.wrong for c in mine], [c.changed for c in mine]), strict=True):
        drawn = axis.barh(places + shift, [100 * share for share in shares], 0.38, color=colour, label=label)
        axis.bar_label(drawn, [_percent(share) for share in shares], padding=3, fontsize=9)
    axis.set_yticks(places, [c.library for c in mine])
    axis.set_xticks([])
    axis.spines[["top", "right", "bottom"]].set_visible(False)
    figure.legend(frameon=False, fontsize=9, loc="outside lower left", ncols=2, columnspacing=1, handlelength=1)
    axis.set_title("Sums of 1,000,000 float32 gradients over 8 devices", fontsize=10, loc="left")
    with mpl.rc_context({"svg.hashsalt": "treefold"}):  # else every run names its parts anew
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})


def main() -> None:
    """Count, and write the page and the picture."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--size", type=int, default=1_000_000, help="elements (1,000,000)")
    size = parser.parse_args().size
    counts = list(measure(size))
    draw(counts, _PICTURE)
    parts = [
        result_pages.describe(["torch", "jax", "tensorflow", "mpi4py", "mpich"]),
        __doc__.split("\n\n")[1].replace("``", "`"),
    ]
    for data in dict.fromkeys(count.data for count in counts):
        parts += [f"## {REPLICAS} replicas, {data}", table_of(counts, data)]
    print(result_pages.save("right-numbers", "Right numbers", parts).read_text(encoding="utf-8"))


if __name__ == "__main__":
    rank() if _RANK in os.environ else main()
