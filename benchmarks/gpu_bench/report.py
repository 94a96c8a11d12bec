"""Runs all tasks one after another, and writes the page and the data."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpu_bench.figures import HEADER, Figure, make_figures
from gpu_bench.machine import Machine
from gpu_bench.measure import Measured, forget_memory, measure
from gpu_bench.tasks import EXECUTORS, make_tasks
from treefold.bench.clock import Pace, spread_of_calls
from treefold.bench.results import format_spread, format_us
from treefold.cli.tables import markdown_table
from treefold.execution.gpus import VARIABLE
from treefold.files import write_atomically

_FORMAT = 1
_READING = """
Times are medians of interleaved rounds; in brackets the quartiles. A ratio is taken within each round, then the median
over the rounds. A GPU's own clock times what it does alone, between two events around a run of calls. The host's clock
times what the host or several GPUs take part in, until all is done. GB = 10⁹ bytes.

**Copy bandwidth**: one `copy_` of all contributions on the same GPU; bytes read and written count for both, and in
place every contribution is read and written. **The bus**: as many bytes to the GPU and to the host at once, on a stream
each. **#wrong**: elements of all results that differ from an exact oracle in any bit, before and after the timing;
the executor `cuda` sums exactly, `local` accumulates wide, PyTorch's ways in the dtype. **Adversarial**: every block is
folded in whole numbers.
"""
_DETAILS = ("work", "way", "executor", "time (µs)", "GB/s", "enqueued (µs)", "#wrong")
_NONE = "-"


@dataclass(frozen=True, slots=True)
class GpuRun:
    """The measurements of one machine on one day. The length of every tensor was divided by ``shrink``."""

    date: str
    machine: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    measured: Mapping[str, Measured] = field(default_factory=dict)
    shrink: int = 1
    notes: tuple[str, ...] = ()

    @property
    def wrong(self) -> int:
        """Elements that treefold got wrong."""
        return sum(found.wrong[contender] for found in self.measured.values() for contender in found.executors)

    def to_json(self) -> str:
        """Return the run as JSON."""
        figures = [
            {"work": figure.work, "wanted": figure.wanted, "verdict": verdict} for figure, verdict in self.verdicts()
        ]
        tasks = [found.to_data() for found in self.measured.values()]
        facts = {"date": self.date, "machine": dict(self.machine), "versions": dict(self.versions)}
        rest = {"shrink": self.shrink, "figures": figures, "tasks": tasks, "notes": self.notes}
        return json.dumps({"treefold_gpu_bench": _FORMAT, **facts, **rest}, indent=1, ensure_ascii=False) + "\n"

    def verdicts(self) -> list[tuple[Figure, str]]:
        """Return every figure and its verdict in words."""
        return [(figure, figure.verdict(self.measured, is_shrunk=self.shrink > 1)) for figure in make_figures()]


def run_all(machine: Machine, pace: Pace, *, shrink: int, begin: Callable[[str], object]) -> GpuRun:
    """Measure every task, calling ``begin`` with its name. A task that does not fit into memory becomes a note."""
    measured = {}
    notes: list[str] = []
    with _setting_kept():
        for name, make in make_tasks(machine, shrink).items():
            begin(name)
            try:
                found = measure(make(machine), machine, pace)
            except RuntimeError as error:  # among them want of memory
                notes.append(f"{name}: {type(error).__name__}: {str(error).splitlines()[0]}")
            else:
                measured[name] = found
                notes += found.notes
            forget_memory()
    return GpuRun("", measured=measured, shrink=shrink, notes=tuple(notes))


def make_page(run: GpuRun) -> str:
    """Return the page."""
    figures = [
        [figure.work, figure.wanted, *(figure.show(run.measured, contender) for contender in EXECUTORS), verdict]
        for figure, verdict in run.verdicts()
    ]
    title = f"# GPUs, {run.date}" if run.date else "# GPUs"
    parts = [title, _facts(run), _READING.strip(), "## Figures", markdown_table(HEADER, figures)]
    rows = [row for found in run.measured.values() for row in _details(found)]
    if rows:
        parts += ["## Every way", markdown_table(_DETAILS, rows)]
    if run.notes:
        parts += ["## Not measured", "\n".join(f"- {note}" for note in run.notes)]
    return "\n\n".join(part for part in parts if part) + "\n"


def write(run: GpuRun, folder: Path, name: str) -> Path:
    """Write the page and its data, and return the page's path."""
    path = folder / f"{name}.md"
    write_atomically(folder / f"{name}.json", run.to_json())
    write_atomically(path, make_page(run))
    return path


def _facts(run: GpuRun) -> str:
    lines = [f"- {name}: {fact}" for name, fact in run.machine.items()]
    if run.versions:
        lines.append("- versions: " + ", ".join(f"{name} {version}" for name, version in run.versions.items()))
    if run.shrink > 1:
        lines.append(f"- every tensor is 1/{run.shrink} as long as its name says: no figure is judged")
    return "\n".join(lines)


def _details(found: Measured) -> Iterator[list[str]]:
    for contender, rounds in found.times.items():
        spread = spread_of_calls(rounds)
        enqueued = found.enqueued.get(contender)
        yield [
            found.name,
            contender,
            found.executors.get(contender, _NONE),
            format_spread(spread, 1e6, 1),
            f"{found.nbytes[contender] / spread.median / 1e9:.1f}",
            _NONE if enqueued is None else format_us(spread_of_calls(enqueued).median),
            str(found.wrong.get(contender, _NONE)),
        ]


@contextlib.contextmanager
def _setting_kept() -> Iterator[None]:
    """Restore the environment variable at the end."""
    before = os.environ.get(VARIABLE)
    try:
        yield
    finally:
        os.environ.pop(VARIABLE, None)
        if before is not None:
            os.environ[VARIABLE] = before
