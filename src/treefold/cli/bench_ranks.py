"""``treefold bench --ranks``: start the ranks, and print what they have measured."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import typer

from treefold.bench.peers.registry import find_mpiexec
from treefold.bench.ranks import IN_PLACE, NEW, ONE_PROCESS, PEERS, SHARED, TASK_VARIABLE, Figure
from treefold.cli.console import echo
from treefold.cli.outputs import check_output
from treefold.cli.run import run_ranks
from treefold.errors import BenchError
from treefold.errors.words import counted
from treefold.execution.host import describe_machine
from treefold.files import write_atomically
from treefold.report.tables import Table

#: The name of a work, and the elements of its arrays.
Work = tuple[str, Sequence[int]]
_MODULE = ["-m", "treefold.bench.ranks"]


def bench_ranks(ranks: int, works: Sequence[Work], against: str, rounds: int, output: Path | None) -> None:
    """Measure all-reduce between processes, and print a table; write the figures as JSON, too, if a path is given."""
    if output is not None:
        check_output("--json", output)
    figures = measure_ranks(ranks, works, read_peers(against), rounds)
    if output is not None:
        run = {"ranks": ranks, "machine": describe_machine(), "figures": [figure._asdict() for figure in figures]}
        write_atomically(output, json.dumps(run, indent=1) + "\n")
    cores = counted(os.cpu_count() or 1, "core")
    print(f"{counted(ranks, 'rank')}, float32, on {cores}; milliseconds per call, CPU time summed over ranks")
    echo(table_of(figures))


def measure_ranks(ranks: int, works: Sequence[Work], peers: Sequence[str], rounds: int) -> list[Figure]:
    """Return what each contestant takes for each work, given as its name and the lengths of its arrays."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "figures.json")
        task = {"works": list(works), "against": list(peers), "rounds": rounds, "output": str(output)}
        code = _start(ranks, peers, {TASK_VARIABLE: json.dumps(task)})
        if code:
            raise typer.Exit(code)
        return [Figure(*row) for row in json.loads(output.read_text(encoding="utf-8"))]


def read_peers(against: str) -> list[str]:
    """Return the peers that are asked for; one that is not there is an error."""
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
    launcher = find_mpiexec()
    if launcher is None:
        raise BenchError.needs("--against mpi", "mpiexec")
    command = [launcher, "-n", str(ranks), sys.executable, *_MODULE]
    return subprocess.run(command, env=os.environ | environment, check=False).returncode  # noqa: S603 - ours


def table_of(figures: Sequence[Figure]) -> Table:
    """Return a row for each figure, with how many times as long each peer takes for the same work."""
    ours = (IN_PLACE, NEW, SHARED, ONE_PROCESS)
    peers = list(dict.fromkeys(figure.name for figure in figures if figure.name not in ours))
    ratios = [f"{peer} / it, {kind}" for peer in peers for kind in ("CPU", "wall")]
    header = ["work", "what", "CPU ms", "wall ms", *ratios, "of one process"]
    return Table(header, [_row(figure, figures, peers) for figure in figures], words=(0, 1))


def _row(figure: Figure, figures: Sequence[Figure], peers: Sequence[str]) -> list[str]:
    beside = {one.name: one for one in figures if one.work == figure.work}
    ratios = []
    for peer in peers:
        of_peer = (beside[peer].cpu_ms / figure.cpu_ms, beside[peer].wall_ms / figure.wall_ms) if peer in beside else ()
        ratios += [f"{ratio:.2f}" for ratio in of_peer] or ["", ""]
    share = beside[ONE_PROCESS].cpu_ms / figure.cpu_ms
    return [figure.work, figure.name, f"{figure.cpu_ms:.3f}", f"{figure.wall_ms:.3f}", *ratios, f"{share:.2f}"]
