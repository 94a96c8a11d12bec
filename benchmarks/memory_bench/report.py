"""The whole report: every figure's work and the representative sweep, on one page with its picture and its data."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from memory_bench.figures import Entry, make_entries, make_figures
from memory_bench.libraries import LIBRARIES
from memory_bench.page import make_page
from memory_bench.picture import draw
from memory_bench.team import Team
from treefold.bench.clock import Pace
from treefold.bench.limit import measure_copy
from treefold.bench.results import Run, WorkRow
from treefold.bench.sweep import Progress, measure
from treefold.errors import BenchError
from treefold.errors.words import counted
from treefold.execution.host import describe_machine, describe_versions
from treefold.files import write_atomically

#: What one machine with one host memory cannot show.
_NOT_HERE = (
    "several NUMA nodes, more than one socket, devices other than host memory: not part of this report",
    "gloo and MPI between hosts: here all their processes share one memory",
)


@dataclass(frozen=True, slots=True)
class Report:
    """The path of the report, its name, and the amount to measure."""

    folder: Path
    date: str
    pace: Pace
    threads: int
    command: str


def make_report(report: Report, *, progress: Progress, on_entry: Callable[[int, int], object]) -> Path:
    """Measure everything and write the page, its picture and its data; return the page's path."""
    entries = make_entries(report.pace, threads=report.threads)
    rows: dict[str, WorkRow] = {}
    notes = list(_NOT_HERE)
    copy = measure_copy(report.threads)
    packages = [package for library in LIBRARIES.values() for package in library.packages if package != "numpy"]
    facts = describe_machine(), describe_versions(packages)

    def save() -> Path:
        run = Run(report.date, *facts, tuple(rows.values()), copy, report.command, tuple(notes))
        return _write(report, run, rows, entries)

    with contextlib.ExitStack() as stack:
        teams = {
            name: stack.enter_context(Team(library, devices=8, threads=report.threads))
            for name, library in LIBRARIES.items()
        }
        for number, entry in enumerate(entries):
            on_entry(number, len(entries))
            chosen = [teams[name] for name in entry.libraries]
            try:
                row = measure(entry.work, entry.pace, baselines=chosen, variants=entry.variants, progress=progress)
            except BenchError as error:
                notes.append(str(error))
            except KeyboardInterrupt:
                notes.append(f"interrupted at {entry.work.name}: {number} of {len(entries)} works are measured")
                break
            else:
                rows[entry.key] = row
            save()  # a run of minutes that ends early leaves what it has
        on_entry(len(entries), len(entries))
    page = save()
    _draw(report, rows, entries)
    return page


def _write(report: Report, run: Run, rows: dict[str, WorkRow], entries: list[Entry]) -> Path:
    report.folder.mkdir(parents=True, exist_ok=True)
    page = report.folder / f"{report.date}.md"
    write_atomically(report.folder / f"{report.date}.json", run.to_json())
    text = make_page(run, rows, make_figures(), picture=_picture(report).name, sweep=_sweep(entries))
    write_atomically(page, text)
    return page


def _draw(report: Report, rows: dict[str, WorkRow], entries: list[Entry]) -> None:
    title = f"treefold, 8 replicas, float32 SUM in place, {counted(report.threads, 'thread')}, {report.date}"
    draw([rows[key] for key in _sweep(entries) if key in rows], _picture(report), title=title)


def _picture(report: Report) -> Path:
    return report.folder / f"{report.date}.png"


def _sweep(entries: list[Entry]) -> list[str]:
    return [entry.key for entry in entries if entry.is_in_sweep]
