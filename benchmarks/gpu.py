"""Measures whether GPUs reach the figures that treefold sets itself; prints a table, and writes a page with its data.

Run it with ``make bench-gpu``, or ``python benchmarks/gpu.py``; ``--help`` lists its options. The exit code is 0 after
a measurement, 1 if a result was wrong, and 2 if there is no GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime as dt
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

# Where TensorFlow is installed, Triton has to be loaded before it (docs/gpus.md).
with contextlib.suppress(ImportError):
    import triton  # noqa: F401

from gpu_bench.machine import CudaMachine
from gpu_bench.report import GpuRun, make_page, run_all, write
from treefold.bench.clock import Pace
from treefold.errors import BenchError
from treefold.execution.host import describe_versions

_RESULTS = Path(__file__).parent / "results"


def read_arguments(words: Sequence[str] | None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description="Measure treefold on the GPUs of this machine.")
    parser.add_argument("--rounds", type=int, default=15, help="rounds that are timed (15)")
    parser.add_argument(
        "--shrink", type=int, default=1, help="divide the length of every tensor, to try it quickly (1)"
    )
    parser.add_argument("--output", type=Path, default=_RESULTS, help="folder of the page and its data")
    return parser.parse_args(words)


def measured(asked: argparse.Namespace) -> tuple[GpuRun, str]:
    """Run the measurement, and return the run and the name of its files."""
    for option, number in (("--rounds", asked.rounds), ("--shrink", asked.shrink)):
        if number < 1:
            raise BenchError.least(option, number, 1)
    machine = CudaMachine()
    if len(machine.gpus) > 1:
        print(importlib.import_module("treefold").verify_links())
    run = run_all(machine, Pace(asked.rounds, warmup=2), shrink=asked.shrink, begin=print)
    today = dt.datetime.now(tz=dt.UTC).date().isoformat()
    facts, versions = machine.facts(), describe_versions(("torch", "triton"))
    return dataclasses.replace(run, date=today, machine=facts, versions=versions), f"gpu-{today}"


def main(words: Sequence[str] | None = None) -> int:
    """Measure, print, write; return the exit code."""
    asked = read_arguments(words)
    try:
        run, name = measured(asked)
    except BenchError as error:
        print(f"benchmarks/gpu.py: {error}", file=sys.stderr)
        return 2
    print(make_page(run))
    asked.output.mkdir(parents=True, exist_ok=True)
    print(write(run, asked.output, name))
    return 1 if run.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
