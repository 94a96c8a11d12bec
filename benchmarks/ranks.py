"""Measures reductions between processes of one host beside gloo and MPI: sizes, a model's gradients, steps under DDP.

Running ``python benchmarks/ranks.py [--ranks 4 8] [--rounds 9] [--against gloo,mpi]`` writes
``results/ranks-<date>.md``. A run takes some minutes; leave the machine alone meanwhile. ``treefold.bench.ranks`` and
``ddp.py`` describe their methods.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import ddp
import result_pages
from memory_bench.libraries import find_mpiexec
from treefold.bench.work import resnet50
from treefold.cli.bench_ranks import Work, measure_ranks, read_baselines, table_of
from treefold.cli.run import run_ranks
from treefold.cli.tables import markdown_table

_KIB, _MIB = 256, 1 << 18  # elements of float32
_ONE_ARRAY: list[Work] = [
    ("4 KiB", [4 * _KIB]),
    ("64 KiB", [64 * _KIB]),
    ("16 MiB", [16 * _MIB]),
    ("64 MiB", [64 * _MIB]),
]
_BATCHES: list[Work] = [
    ("8 × 1 MiB", [_MIB] * 8),
    ("ResNet-50's", [math.prod(shape) for shape in resnet50()]),
]


def measure(ranks: list[int], rounds: int, against: list[str]) -> list[str]:
    """Run the measurement, and return the parts of the page."""
    parts = [result_pages.describe(["torch", "mpi4py", "mpich"])]
    for size in ranks:
        parts += [f"## {size} ranks", _EXPLANATION]
        parts += [
            table_of(measure_ranks(_start(size, against), works, against, rounds)).to_markdown()
            for works in (_ONE_ARRAY, _BATCHES)
        ]
    parts += ["## Steps under DDP", ddp.__doc__.split("\n\n")[1].replace("``", "`")]
    return [*parts, markdown_table(ddp.HEADER, [row for size in (2, 4) for row in ddp.measure(size, 4 * rounds)])]


def _start(ranks: int, against: list[str]) -> Callable[[Mapping[str, str]], int]:
    """Return a function that runs ``ranks`` ranks to their end; MPI's own launcher starts them if MPI is measured."""
    if "mpi" not in against:
        return lambda task: run_ranks([sys.executable, "-m", "treefold.bench.ranks"], ranks, task)
    launcher = find_mpiexec()
    if launcher is None:
        sys.exit("--against mpi needs mpiexec, which is not on the PATH")
    command = [launcher, "-n", str(ranks), sys.executable, str(Path(__file__).with_name("ranks_with_mpi.py"))]
    return lambda task: subprocess.run(command, env=os.environ | task, check=False).returncode  # noqa: S603 - ours


_EXPLANATION = (
    "float32; treefold's sums are exact, its peers' are rounded on the way. Milliseconds per call, medians over "
    "rounds in which all take turns in the same processes; CPU time summed over ranks, wall time of the slowest "
    "rank. Ratios: how many times as long the peer takes for the same work. Peers reduce several arrays by a call "
    "each, or as one flat array of as many bytes. Every element was checked on every rank. One process: "
    "`treefold.all_reduce` in place on as many arrays."
)


def main() -> None:
    """Read the command line, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--against", default="gloo,mpi")
    arguments = parser.parse_args()
    parts = measure(
        arguments.ranks, arguments.rounds, read_baselines(arguments.against, {"gloo": "torch", "mpi": "mpi4py"})
    )
    print(result_pages.save("ranks", "Between processes of one host", parts).read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
