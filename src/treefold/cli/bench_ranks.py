"""``treefold bench --ranks``: starts the ranks, and prints what they have measured."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import typer

from treefold.bench.ranks import BASELINES, IN_PLACE, NEW, ONE_PROCESS, SHARED, TASK_VARIABLE, Figure
from treefold.cli.console import echo
from treefold.cli.needs import check_output, has_module
from treefold.cli.run import run_ranks
from treefold.cli.tables import Table
from treefold.errors import BenchError
from treefold.errors.words import counted
from treefold.execution.host import describe_machine
from treefold.files import write_atomically

#: The name of a work, and the elements of its arrays.
Work = tuple[str, Sequence[int]]


def bench_ranks(ranks: int, works: Sequence[Work], against: str, rounds: int, output: Path | None) -> None:
    """Measure all-reduce between processes, and print a table; write the figures as JSON, too, if a path is given."""
    if output is not None:
        check_output("--json", output)
    baselines = read_baselines(against, BASELINES)
    program = [sys.executable, "-m", "treefold.bench.ranks"]
    figures = measure_ranks(lambda task: run_ranks(program, ranks, task), works, baselines, rounds)
    if output is not None:
        run = {"ranks": ranks, "machine": describe_machine(), "figures": [figure._asdict() for figure in figures]}
        write_atomically(output, json.dumps(run, indent=1) + "\n")
    cores = counted(os.cpu_count() or 1, "core")
    print(f"{counted(ranks, 'rank')}, float32, on {cores}; milliseconds per call, CPU time summed over ranks")
    echo(table_of(figures))


def measure_ranks(
    start: Callable[[Mapping[str, str]], int], works: Sequence[Work], baselines: Sequence[str], rounds: int
) -> list[Figure]:
    """Return the time of each baseline and of treefold for each work, a name and the lengths of its arrays.

    The call ``start(variables)`` adds these to the environment, runs all ranks to their end, and returns their exit
    code.
    """
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "figures.json")
        task = {"works": list(works), "against": list(baselines), "rounds": rounds, "output": str(output)}
        code = start({TASK_VARIABLE: json.dumps(task)})
        if code:
            raise typer.Exit(code)
        return [Figure(*row) for row in json.loads(output.read_text(encoding="utf-8"))]


def read_baselines(against: str, modules: Mapping[str, str]) -> list[str]:
    """Return the baselines that ``--against`` names; "all" stands for all of ``modules``. A missing one is an error."""
    names = list(modules) if against == "all" else [name.strip() for name in against.split(",") if name.strip()]
    for name in names:
        if name not in modules:
            raise BenchError.choice("--against", name, ("all", *modules))
        if not has_module(modules[name]):
            raise BenchError.needs(f"--against {name}", modules[name])
    return list(dict.fromkeys(names))


def table_of(figures: Sequence[Figure]) -> Table:
    """Return a row for each figure, with the ratio of each baseline's time for the same work to it."""
    ours = (IN_PLACE, NEW, SHARED, ONE_PROCESS)
    baselines = list(dict.fromkeys(figure.name for figure in figures if figure.name not in ours))
    ratios = [f"{name} / it, {kind}" for name in baselines for kind in ("CPU", "wall")]
    header = ["work", "what", "CPU ms", "wall ms", *ratios, "of one process"]
    return Table(header, [_row(figure, figures, baselines) for figure in figures], words=(0, 1))


def _row(figure: Figure, figures: Sequence[Figure], baselines: Sequence[str]) -> list[str]:
    beside = {one.name: one for one in figures if one.work == figure.work}
    ratios = []
    for one in map(beside.get, baselines):
        both = () if one is None else (one.cpu_ms / figure.cpu_ms, one.wall_ms / figure.wall_ms)
        ratios += [f"{ratio:.2f}" for ratio in both] or ["", ""]
    share = beside[ONE_PROCESS].cpu_ms / figure.cpu_ms
    return [figure.work, figure.name, f"{figure.cpu_ms:.3f}", f"{figure.wall_ms:.3f}", *ratios, f"{share:.2f}"]
