"""Measures all-reduce on host memory against the memory's limit and other libraries; writes a page with data.

Run it with ``make bench``, or ``python benchmarks/memory.py``; ``--help`` lists its options. The run takes about 25
minutes and 16 GB of memory; leave the machine alone meanwhile.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from memory_bench.report import Report, make_report
from treefold.bench.clock import Pace
from treefold.cli.bench import progress_of_works
from treefold.cli.needs import check_output
from treefold.errors import BenchError, CommandError
from treefold.execution import native

_RESULTS = Path(__file__).parent / "results"


def read_arguments(words: Sequence[str] | None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description="Measure all-reduce on host memory beside other libraries.")
    parser.add_argument("-n", "--iterations", type=int, default=15, help="rounds that are timed (15)")
    parser.add_argument("-w", "--warmup", type=int, default=2, help="rounds before them that are not (2)")
    parser.add_argument("--threads", type=int, help="threads of one call; default: as treefold has them")
    parser.add_argument("--output", type=Path, default=_RESULTS, help="folder of the page, its picture and its data")
    return parser.parse_args(words)


def measured(asked: argparse.Namespace) -> Path:
    """Run the measurement, write the page, and return its path."""
    for option, number, least in (
        ("-n", asked.iterations, 1),
        ("-w", asked.warmup, 0),
        ("--threads", asked.threads, 1),
    ):
        if number is not None and number < least:
            raise BenchError.least(option, number, least)
    with contextlib.suppress(OSError):  # the check below says why
        asked.output.mkdir(parents=True, exist_ok=True)
    check_output("--output", asked.output / "report.md")
    report = Report(
        asked.output,
        date=dt.datetime.now(tz=dt.UTC).date().isoformat(),
        pace=Pace(asked.iterations, asked.warmup),
        threads=asked.threads or native.num_threads(),
        command=f"python benchmarks/memory.py {shlex.join(sys.argv[1:])}".strip(),
    )
    with progress_of_works() as (progress, advance):
        return make_report(report, progress=progress, on_entry=advance)


def main(words: Sequence[str] | None = None) -> int:
    """Run the measurement, write the page, print its path; return the exit code."""
    asked = read_arguments(words)
    try:
        print(measured(asked))
    except CommandError as error:
        print(f"benchmarks/memory.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
