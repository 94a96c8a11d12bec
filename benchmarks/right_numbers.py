"""How many elements of sums are wrong, and how many change with the number of ranks, in every library.

``python benchmarks/right_numbers.py`` writes ``results/right-numbers-<date>.md`` and its picture. A sum over 8 replicas
is *wrong* if it is not the exact value, rounded once. A sum *changes* if its bits are not the same on 1, 2, 4 and 8
ranks. Each rank adds its own replicas, as gradients are accumulated, and the sums of the ranks are added.

gloo, MPICH and treefold run in as many processes, with one replica each for the column *wrong*. gloo and MPICH get each
rank's sum from a loop of NumPy; treefold gets the replicas. The other libraries run in one process. They add each
rank's replicas, then the sums of the ranks. The float64 accumulator is
``np.sum(arrays, axis=0, dtype=np.float64).astype(dtype)``.

The oracle is ``math.fsum``, exact for float64. Where its result is halfway between two numbers of a narrower dtype, it
is asked again on which side of that the sum is.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
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

REPLICAS, RANKS = 8, (1, 2, 4, 8)
_PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "right_numbers.svg"
_DTYPES = {"bfloat16": np.dtype(ml_dtypes.bfloat16), "float32": np.dtype("float32"), "float64": np.dtype("float64")}
#: Tells a process that it is a rank: its engine, the number of ranks, and the folder of inputs and results.
_RANK = "TREEFOLD_RIGHT_NUMBERS"
#: The kind of data and the dtype of each sum.
Case = tuple[str, str]


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


def by_wide(parts: list[Array]) -> Array:
    """Add in float64, and round once."""
    return np.sum(parts, axis=0, dtype=np.float64).astype(parts[0].dtype)


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


LIBRARIES: dict[str, Reduction] = {
    "NumPy, a loop": by_numpy,
    "float64 accumulator": by_wide,
    "PyTorch": by_torch,
    "JAX": by_jax,
    "TensorFlow": by_tensorflow,
}
ENGINES = {"gloo": "gloo", "MPICH": "mpi", "treefold": "treefold"}


def on_ranks(reduce: Reduction, parts: list[Array], ranks: int) -> Array:
    """Return the sum of the sums of equal groups of replicas."""
    each = len(parts) // ranks
    return reduce([reduce(parts[first : first + each]) for first in range(0, len(parts), each)])


def start_ranks(engine: str, ranks: int, folder: Path) -> None:
    """Let processes reduce every input of the folder."""
    task = {_RANK: f"{engine} {ranks} {folder}"}
    program = [sys.executable, str(Path(__file__).resolve())]
    commands = [program] * ranks
    if engine == "mpi":
        commands = [[str(find_mpiexec()), "-n", str(ranks), *program]]
    processes = [
        subprocess.Popen(command, env=os.environ | task | {"RANK": str(rank)})  # noqa: S603 - ours
        for rank, command in enumerate(commands)
    ]
    if sum(process.wait() for process in processes):
        raise RuntimeError(engine, ranks)


def rank() -> None:
    """Reduce this rank's replicas of every input with the other ranks'; rank 0 writes the sums."""
    engine, ranks, folder = os.environ[_RANK].split(" ", maxsplit=2)
    index, reduce = _mpi() if engine == "mpi" else _torch(engine, int(ranks), folder)
    for path in sorted(Path(folder).glob("*.npy")):
        name = path.stem.partition("-")[2]
        if engine == "mpi" and name == "bfloat16":  # MPI has no such dtype
            continue
        each = REPLICAS // int(ranks)
        own = np.load(path)[index * each : (index + 1) * each].view(_DTYPES[name])
        total = reduce(list(own))
        if index == 0:
            np.save(Path(folder, engine, f"{ranks}-{path.name}"), _bits(total))
    if engine != "mpi":
        from torch import distributed  # noqa: PLC0415 - an extra

        distributed.barrier()
        distributed.destroy_process_group()


def _mpi() -> tuple[int, Reduction]:
    from mpi4py import MPI  # noqa: PLC0415 - an extra

    def reduce(own: list[Array]) -> Array:
        total = by_numpy(own)
        MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, total)
        return total

    return MPI.COMM_WORLD.rank, reduce


def _torch(engine: str, ranks: int, folder: str) -> tuple[int, Reduction]:
    import torch  # noqa: PLC0415 - an extra
    from torch import distributed  # noqa: PLC0415 - an extra

    index = int(os.environ["RANK"])
    torch.set_num_threads(1)
    store = f"file://{folder}/{engine}/store{ranks}"
    distributed.init_process_group("gloo", init_method=store, rank=index, world_size=ranks)

    def by_gloo(own: list[Array]) -> Array:
        total = by_numpy(own)
        tensor = torch.from_numpy(total.view(f"i{total.itemsize}")).view(getattr(torch, total.dtype.name))
        distributed.all_reduce(tensor)
        return total

    if engine == "gloo":
        return index, by_gloo
    group = treefold.connect(distributed.group.WORLD)
    return index, lambda own: group.all_reduce(treefold.PerReplica(own))


def measure(size: int) -> list[Count]:
    """Count for every library, kind of data and dtype."""
    kinds = {"like gradients": gradients, "with cancellation": cancelling}
    cases = {(data, name): make(size, dtype) for data, make in kinds.items() for name, dtype in _DTYPES.items()}
    right = {case: exact_sums(parts) for case, parts in cases.items()}
    counts = []
    for library, reduce in LIBRARIES.items():
        for case, parts in cases.items():
            sums = [on_ranks(reduce, parts, ranks) for ranks in RANKS]
            counts.append(_count(library, case, sums, sums[0], right))
            print(f"{library}: {counts[-1]}", file=sys.stderr)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number, ((_, dtype), parts) in enumerate(cases.items()):
            np.save(folder / f"{number}-{dtype}.npy", _bits(np.stack(parts)))
        for library, engine in ENGINES.items():
            (folder / engine).mkdir()
            for ranks in RANKS:
                start_ranks(engine, ranks, folder)
            for number, case in enumerate(cases):
                files = [folder / engine / f"{ranks}-{number}-{case[1]}.npy" for ranks in RANKS]
                sums = [np.load(file).view(_DTYPES[case[1]]) for file in files if file.exists()]
                counts.append(_count(library, case, sums, sums[-1] if sums else None, right))
                print(f"{library}: {counts[-1]}", file=sys.stderr)
    return counts


def _count(library: str, case: Case, sums: list[Array], shown: Array | None, right: Mapping[Case, Array]) -> Count:
    if shown is None:
        return Count(library, *case, None, None)
    changed = np.any([_bits(other) != _bits(sums[0]) for other in sums[1:]], axis=0)
    return Count(library, *case, np.mean(_bits(shown) != _bits(right[case])), np.mean(changed))


def _bits(array: Array) -> Array:
    return array.view(f"u{array.dtype.itemsize}")


def table_of(counts: list[Count], data: str) -> str:
    """Return a row for each library, and two columns for each dtype."""
    header = ["library", *(f"{name}: {what}" for name in _DTYPES for what in ("wrong", "changed"))]
    rows = []
    for library in (*LIBRARIES, *ENGINES):
        mine = [count for count in counts if (count.library, count.data) == (library, data)]
        rows.append([library, *(_percent(share) for count in mine for share in (count.wrong, count.changed))])
    return markdown_table(header, rows)


def _percent(share: float | None) -> str:
    if share is None:
        return "-"
    return f"{share:.1%}".replace("%", " %") if share else "0"


def draw(counts: list[Count], path: Path) -> None:
    """Draw the shares of float32 and float64 like gradients, a bar for what is wrong and one for what changes."""
    # Narrow, so that it can be read on a telephone.
    figure = Figure(figsize=(4.8, 6.8), layout="constrained")
    bars = (
        ("not the exact sum, rounded once", "#dc2626", 0.2),
        ("other bits on other numbers of ranks", "#f59e0b", -0.2),
    )
    for axis, name in zip(figure.subplots(2), ("float32", "float64"), strict=True):
        mine = [c for c in counts if (c.data, c.dtype) == ("like gradients", name)]
        places = np.arange(len(mine))[::-1]
        for (label, colour, shift), shares in zip(
            bars, ([c.wrong for c in mine], [c.changed for c in mine]), strict=True
        ):
            drawn = axis.barh(places + shift, [100 * share for share in shares], 0.38, color=colour, label=label)
            axis.bar_label(drawn, [_percent(share) for share in shares], padding=3, fontsize=8)
        axis.set_yticks(places, [c.library for c in mine], fontsize=9)
        axis.set_xticks([])
        axis.spines[["top", "right", "bottom"]].set_visible(False)
        axis.set_title(f"Sums over 8 replicas, {name}", fontsize=10, loc="left")
    handles = figure.axes[0].get_legend_handles_labels()
    figure.legend(*handles, frameon=False, fontsize=9, loc="outside lower left", ncols=1, handlelength=1)
    with mpl.rc_context({"svg.hashsalt": "treefold"}):  # else every run names its parts anew
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})


def main() -> None:
    """Count, and write the page and the picture."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--size", type=int, default=1_000_000, help="elements (1,000,000)")
    size = parser.parse_args().size
    counts = measure(size)
    draw(counts, _PICTURE)
    about = [part.replace("``", "`") for part in __doc__.split("\n\n")[1:]]
    parts = [result_pages.describe(["torch", "jax", "tensorflow", "mpi4py", "mpich"]), *about]
    for data in dict.fromkeys(count.data for count in counts):
        parts += [f"## {REPLICAS} replicas, {data}", table_of(counts, data)]
    print(result_pages.save("right-numbers", "Right numbers", parts).read_text(encoding="utf-8"))


if __name__ == "__main__":
    rank() if _RANK in os.environ else main()
