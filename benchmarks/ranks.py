"""Reductions between processes of one host beside gloo and MPI: every size, a model's gradients, steps under DDP.

``python benchmarks/ranks.py [--ranks 4 8] [--rounds 9] [--against gloo,mpi]`` writes ``results/ranks-<date>.md``. It
takes some minutes; leave the machine alone meanwhile. ``treefold.bench.ranks`` and ``ddp.py`` say how they measure.
"""

from __future__ import annotations

import argparse
import math

import ddp
import result_pages
from treefold.bench.models import resnet50
from treefold.cli.bench_ranks import Work, measure_ranks, read_peers, table_of
from treefold.report.tables import markdown_table

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
    """Measure, and return the parts of the page."""
    parts = [result_pages.describe(["torch", "mpi4py", "mpich"])]
    for size in ranks:
        parts += [f"## {size} ranks", _EXPLANATION]
        parts += [
            table_of(measure_ranks(size, works, against, rounds)).to_markdown() for works in (_ONE_ARRAY, _BATCHES)
        ]
    parts += ["## Steps under DDP", ddp.__doc__.split("\n\n")[1].replace("``", "`")]
    return [*parts, markdown_table(ddp.HEADER, [row for size in (2, 4) for row in ddp.measure(size, 4 * rounds)])]


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
    parts = measure(arguments.ranks, arguments.rounds, read_peers(arguments.against))
    print(result_pages.save("ranks", "Between processes of one host", parts).read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
