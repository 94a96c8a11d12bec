"""``treefold bench --ranks``: start the ranks, and print what they have measured."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import typer

from treefold.bench.ranks import ONE_PROCESS, PEERS, TASK_VARIABLE, Figure
from treefold.cli.console import echo
from treefold.cli.run import run_ranks
from treefold.errors import BenchError
from treefold.errors.words import bytes_in_words, counted
from treefold.report.tables import Table

_MODULE = ["-m", "treefold.bench.ranks"]


def bench_ranks(ranks: int, sizes: Sequence[int], against: str, rounds: int) -> None:
    """Measure all-reduce between processes, and print a table."""
    peers = _read_peers(against)
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "figures.json")
        task = {"sizes": list(sizes), "against": peers, "rounds": rounds, "output": str(output)}
        code = _start(ranks, peers, {TASK_VARIABLE: json.dumps(task)})
        if code:
            raise typer.Exit(code)
        figures = [Figure(*row) for row in json.loads(output.read_text(encoding="utf-8"))]
    cores = counted(os.cpu_count() or 1, "core")
    print(f"{counted(ranks, 'rank')}, float32, wide, on {cores}; milliseconds per call, CPU time summed over ranks")
    echo(Table(_header(peers), _rows(figures, peers), words=(0, 1)))


def _read_peers(against: str) -> list[str]:
    names = list(PEERS) if against == "all" else [name.strip() for name in against.split(",") if name.strip()]
    for name in names:
        if name not in PEERS:
            raise BenchError.choice("--against", name, ("all", *PEERS))
        if importlib.util.find_spec(PEERS[name]) is None:
            raise BenchError.needs(f"--against {name}", PEERS[name])
    return list(dict.fromkeys(names))


def _start(ranks: int, peers: Sequence[str], environment: dict[str, str]) -> int:
    """Run the ranks to their end; MPI's are started by its own launcher."""
    if "mpi" not in peers:
        return run_ranks([sys.executable, *_MODULE], ranks, environment)
    beside = Path(sys.executable).with_name("mpiexec")
    launcher = str(beside) if beside.exists() else shutil.which("mpiexec")
    if launcher is None:
        raise BenchError.needs("--against mpi", "mpiexec")
    command = [launcher, "-n", str(ranks), sys.executable, *_MODULE]
    return subprocess.run(command, env=os.environ | environment, check=False).returncode  # noqa: S603 - ours


def _header(peers: Sequence[str]) -> list[str]:
    ratios = [f"{peer} / it, {kind}" for peer in peers for kind in ("CPU", "wall")]
    return ["size", "what", "CPU ms", "wall ms", *ratios, "of one process"]


def _rows(figures: Sequence[Figure], peers: Sequence[str]) -> list[list[str]]:
    rows = []
    for nbytes in dict.fromkeys(figure.nbytes for figure in figures):
        by_name = {figure.name: figure for figure in figures if figure.nbytes == nbytes}
        one = by_name[ONE_PROCESS]
        for figure in by_name.values():
            ratios = [
                f"{theirs / ours:.2f}"
                for peer in peers
                for theirs, ours in zip(by_name[peer][2:], figure[2:], strict=True)
            ]
            times = [f"{figure.cpu_ms:.3f}", f"{figure.wall_ms:.3f}"]
            rows.append([bytes_in_words(nbytes), figure.name, *times, *ratios, f"{one.cpu_ms / figure.cpu_ms:.2f}"])
    return rows
