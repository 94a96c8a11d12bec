"""``treefold bench``: read the options, run, show progress on stderr, print and write the results."""

from __future__ import annotations

import contextlib
import datetime as dt
import math
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, cast

import typer

import treefold
from treefold.bench.baselines import BASELINES, InProcess
from treefold.bench.clock import Pace
from treefold.bench.limit import measure_copy
from treefold.bench.results import (
    BASELINE_HEADER,
    HEADER,
    Run,
    WorkRow,
    baseline_rows,
    format_spread,
    row_cells,
    rows_to_csv,
)
from treefold.bench.sweep import Progress, measure
from treefold.bench.work import Work, shapes_of_model, shapes_of_size
from treefold.cli.bench_ranks import bench_ranks, read_baselines
from treefold.cli.completion import lists, words
from treefold.cli.console import counting_columns, echo, progress
from treefold.cli.needs import check_output
from treefold.cli.sizes import parse_size, sweep_sizes
from treefold.cli.tables import Table
from treefold.errors import BenchError
from treefold.errors.words import bytes_in_words, counted, short
from treefold.execution import native
from treefold.execution.host import describe_machine, describe_versions
from treefold.files import write_atomically
from treefold.reduce_op import ReduceOpName

_OUTPUT = "Output"
_WHERE = "Where results go (one of these)"
_BASELINES = ("numpy", "torch")
_DTYPES = (
    *("float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64"),
    *("uint8", "uint16", "uint32", "uint64", "complex64", "complex128"),
)
_MODELS = ("resnet50", "vgg16", "bert-base", "bert-large", "gpt2", "vit-b-16")

_Begin = Annotated[str, typer.Option("-b", "--begin", metavar="SIZE", help="First size: bytes per replica.")]
_End = Annotated[str, typer.Option("-e", "--end", metavar="SIZE", help="Last size.")]
_Factor = Annotated[int, typer.Option("-f", "--factor", help="From one size to the next.")]
_Iterations = Annotated[int, typer.Option("-n", "--iterations", help="Rounds that are timed.")]
_Warmup = Annotated[int, typer.Option("-w", "--warmup", help="Rounds before them that are not.")]
_Op = Annotated[
    str,
    typer.Option(help="sum, mean, min, max or product.", autocompletion=words("sum", "mean", "min", "max", "product")),
]
_Dtype = Annotated[str, typer.Option(help="float32, bfloat16, int8, complex64 …", autocompletion=words(*_DTYPES))]
_Devices = Annotated[int, typer.Option(help="Replicas.")]
_Model = Annotated[
    str | None,
    typer.Option(
        help="Gradients of a model instead of sizes: resnet50, bert-base, gpt2, vgg16 …",
        autocompletion=words(*_MODELS),
    ),
]
_Accumulate = Annotated[str, typer.Option(help="exact or native.", autocompletion=words("exact", "native"))]
_Threads = Annotated[int | None, typer.Option(help="Threads of one call; default: as treefold has them.")]
_Against = Annotated[
    str,
    typer.Option(
        metavar="LIBRARIES",
        help=f"all, or some of {','.join(_BASELINES)}: run them on the same work.",
        autocompletion=lists(*_BASELINES),
    ),
]

_Ranks = Annotated[
    int | None,
    typer.Option(min=2, help="Measure between so many processes instead, float32; --against gloo."),
]
_Hosts = Annotated[
    bool,
    typer.Option("--hosts", help="Measure between emulated hosts instead: in a clone, on Linux, as root."),
]
_OfHosts = Annotated[
    list[str] | None, typer.Argument(metavar="WORDS", help="Behind --, the options of --hosts; -- --help lists them.")
]
_InPlace = Annotated[
    bool, typer.Option("--in-place", help="Into the contributions (the default).", rich_help_panel=_WHERE)
]
_OutOfPlace = Annotated[bool, typer.Option("--out-of-place", help="Into given arrays.", rich_help_panel=_WHERE)]
_New = Annotated[bool, typer.Option("--new", help="Into new arrays.", rich_help_panel=_WHERE)]
_Shared = Annotated[bool, typer.Option("--shared", help="Into one new array for all.", rich_help_panel=_WHERE)]

_Json = Annotated[Path | None, typer.Option(help="Write the run as JSON.", rich_help_panel=_OUTPUT)]
_Csv = Annotated[Path | None, typer.Option(help="Write the rows as CSV.", rich_help_panel=_OUTPUT)]

#: The options that ``--ranks`` heeds.
_WITH_RANKS = ("ranks", "begin", "end", "factor", "iterations", "model", "against", "json")


def bench(  # noqa: PLR0913 - every option of a command is one
    context: typer.Context,
    *,
    begin: _Begin = "4K",
    end: _End = "64M",
    factor: _Factor = 4,
    iterations: _Iterations = 15,
    warmup: _Warmup = 2,
    op: _Op = "sum",
    dtype: _Dtype = "float32",
    devices: _Devices = 8,
    in_place: _InPlace = False,
    given: _OutOfPlace = False,
    new: _New = False,
    shared: _Shared = False,
    model: _Model = None,
    accumulate: _Accumulate = "exact",
    threads: _Threads = None,
    against: _Against = "",
    ranks: _Ranks = None,
    json: _Json = None,
    csv: _Csv = None,
    hosts: _Hosts = False,
    words: _OfHosts = None,
) -> None:
    """Measure all-reduce on host memory: against the memory's limit, and against other libraries."""
    if hosts or words:
        return bench_hosts(words or [], is_asked_for=hosts)
    if ranks is not None:
        return bench_ranks(ranks, _works_of_ranks(context, model, (begin, end, factor)), against, iterations, json)
    pace, threads = _read_pace(iterations, warmup, threads)
    placement = _placement({"--in-place": in_place, "--out-of-place": given, "--new": new, "--shared": shared})
    base = Work("", (), cast("ReduceOpName", op), dtype, devices, placement, accumulate, threads)
    base.check()  # refuses an unknown op
    works = list(_works(base, model, (begin, end, factor)))
    # With "all", a missing library is no error but a row of the table.
    baselines = list(BASELINES) if against == "all" else read_baselines(against, {name: name for name in BASELINES})
    for option, path in (("--json", json), ("--csv", csv)):
        if path is not None:
            check_output(option, path)
    run = _run(works, baselines, pace, threads)
    if json is not None:
        write_atomically(json, run.to_json())
    if csv is not None:
        write_atomically(csv, rows_to_csv(run.rows))
    return _print(run)


def _works_of_ranks(
    context: typer.Context, model: str | None, sizes: tuple[str, str, int]
) -> list[tuple[str, list[int]]]:
    """Return works by name, with the lengths of their arrays. Refuse options that ranks would ignore."""
    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        if source is not None and source.name == "COMMANDLINE" and option.name not in _WITH_RANKS:
            raise BenchError(
                f"{option.opts[0]} does not go with --ranks, which measures sums of float32. It takes "
                f"{', '.join([f'--{name}' for name in _WITH_RANKS[1:]])}."
            )
    if model is not None:
        return [(model, [math.prod(shape) for shape in shapes_of_model(model)])]
    return [
        (bytes_in_words(nbytes), [math.prod(shape) for shape in shapes_of_size(nbytes, "float32")])
        for nbytes in _read_sizes(*sizes)
    ]


def _read_pace(iterations: int, warmup: int, threads: int | None) -> tuple[Pace, int]:
    for option, number, least in (("-n", iterations, 1), ("-w", warmup, 0), ("--threads", threads, 1)):
        if number is not None and number < least:
            raise BenchError.least(option, number, least)
    return Pace(iterations, warmup), native.num_threads() if threads is None else threads


def _placement(given: dict[str, bool]) -> str:
    chosen = [option for option, is_given in given.items() if is_given]
    if len(chosen) > 1:
        raise BenchError(f"{', '.join(chosen)} all say where results go; give one of them.")
    return (chosen or ["--in-place"])[0].removeprefix("--")


def _read_sizes(begin: str, end: str, factor: int) -> list[int]:
    return sweep_sizes(parse_size(begin, "-b"), parse_size(end, "-e"), factor)


def _works(base: Work, model: str | None, sizes: tuple[str, str, int]) -> Iterator[Work]:
    if model is not None:
        yield replace(base, name=model, shapes=shapes_of_model(model))
        return
    for nbytes in _read_sizes(*sizes):
        yield replace(base, name=bytes_in_words(nbytes), shapes=shapes_of_size(nbytes, base.dtype))


def _run(works: Sequence[Work], baselines: Sequence[str], pace: Pace, threads: int) -> Run:
    rows: list[WorkRow] = []
    with progress_of_works() as (shown, advance):
        measured = [InProcess(name, BASELINES[name]) for name in baselines]
        copy = measure_copy(threads, nbytes=min(1 << 28, max(work.nbytes * work.devices for work in works)))
        for number, work in enumerate(works):
            advance(number, len(works))
            rows.append(measure(work, pace, baselines=measured, progress=shown))
        advance(len(works), len(works))
    machine, versions = describe_machine(), describe_versions([name for name in baselines if name != "numpy"])
    today = dt.datetime.now(tz=dt.UTC).date().isoformat()
    return Run(today, machine, versions, tuple(rows), copy, f"treefold {shlex.join(sys.argv[1:])}")


def _print(run: Run) -> None:
    for name, fact in _above_table(run).items():
        print(f"{name + ':':<13} {fact}")
    print()
    echo(Table(HEADER, [row_cells(row) for row in run.rows], words=(0, 3, 4, 5)))
    beside = baseline_rows(run.rows)
    if beside:
        print()
        echo(Table(BASELINE_HEADER, beside, words=(0, 1, 2)))


def _above_table(run: Run) -> dict[str, str]:
    """Return the facts that a reader of the table needs, by name: the machine, the work, and the columns."""
    first, copy = run.rows[0], run.copy_gb_per_s
    many = f"{counted(first.devices, 'replica')}, {counted(first.threads, 'thread')}"
    facts = {
        **run.machine,
        "versions": ", ".join(f"{name} {version}" for name, version in run.versions.items()),
        "work": f"{many}, accumulate={first.accumulate}, sizes per replica",
    }
    if copy is not None:
        facts["plain copy"] = f"{format_spread(copy, 1, 1)} GB/s read + written, with these threads"
    return facts | {
        "time": "the median of one call; p99 is its 99th percentile",
        "% of limit": "the same traffic without arithmetic takes so much of the time [quartiles]",
        "#wrong": "elements that differ from the exact result",
    }


@contextlib.contextmanager
def progress_of_works() -> Iterator[tuple[Progress, Callable[[int, int], object]]]:
    """Show a bar on stderr. Yield the measurement's callbacks, and a function of the works done and all works."""
    # Redrawn on request, never by a thread of its own, which would run beside the measurement.
    with progress(*counting_columns(), is_automatic=False, is_transient=True) as bar:
        task = bar.add_task("starting", total=None)

        def begin(name: str) -> None:
            bar.update(task, description=name, refresh=True)

        def advance(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total, refresh=True)

        yield Progress(begin, bar.refresh), advance


_PROGRAM = Path("benchmarks", "hosts.py")
#: What it stands on.
_LAB = Path("tools", "lab")


def bench_hosts(options: Sequence[str], *, is_asked_for: bool) -> None:
    """Run ``benchmarks/hosts.py`` with these options of its own, and end with its exit code.

    Raises:
        BenchError: there is no clone, neither above this package nor in the current folder; or options without --hosts.

    """
    if not is_asked_for:
        raise BenchError(
            f"treefold bench got {short(options[0])}. Only --hosts takes words behind --; options begin with -."
        )
    above = Path(treefold.__file__).parents[2]
    clone = next((one for one in (above, Path.cwd()) if (one / _PROGRAM).is_file() and (one / _LAB).is_dir()), None)
    if clone is None:
        raise BenchError(
            f"--hosts runs {_PROGRAM!s}, which is in treefold's repository and not in the package. Run it in a "
            "clone, as root on Linux."
        )
    command = [sys.executable, str(clone / _PROGRAM), *options]
    raise typer.Exit(subprocess.run(command, check=False).returncode)  # noqa: S603 - our own program
