"""The command ``treefold demo``: arguments in, training, then what came of it on stdout and in a page."""

from __future__ import annotations

import datetime as dt
import enum
import importlib.metadata
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from treefold import (
    AllReduceCrossDeviceOps,
    CrossDeviceOps,
    HierarchicalCopyAllReduce,
    NcclAllReduce,
    ReductionToOneDevice,
    __version__,
)
from treefold.cli.console import echo, progress
from treefold.cli.demo.checks import check_result
from treefold.cli.demo.data import CLASSES, Digits, load_split_digits
from treefold.cli.demo.figures import describe_work, make_page, tabulate
from treefold.cli.demo.ranks import train_connected
from treefold.cli.demo.speed import Speed, measure_speed
from treefold.cli.demo.train import BATCH_SIZE, DemoResult, train_all
from treefold.cli.outputs import check_output
from treefold.cli.run import run_ranks
from treefold.errors import CommandError
from treefold.files import write_atomically
from treefold.topology.drawing.page import Check, render_page

DEFAULT_EPOCHS = 30


class DemoOps(enum.StrEnum):
    """The ops that ``--ops`` names."""

    HIERARCHICAL = "hierarchical"
    ONE_DEVICE = "one-device"
    ALL_REDUCE = "all-reduce"
    NCCL = "nccl"


_PACKING_OPS: dict[DemoOps, Callable[..., CrossDeviceOps]] = {
    DemoOps.HIERARCHICAL: HierarchicalCopyAllReduce,
    DemoOps.ALL_REDUCE: AllReduceCrossDeviceOps,
    DemoOps.NCCL: NcclAllReduce,
}
#: How many devices train unless told.
_DEVICES = 3


def demo(  # noqa: PLR0913 - every option of a command is one
    *,
    devices: Annotated[int | None, typer.Option(help=f"Devices to train on, 2 to {CLASSES}; 3 if not given.")] = None,
    ops: Annotated[DemoOps | None, typer.Option(help="What reduces gradients; hierarchical if not given.")] = None,
    num_packs: Annotated[int | None, typer.Option(help="Packs that the gradients travel in; 0 for none.")] = None,
    epochs: Annotated[int | None, typer.Option(help=f"Passes over the data; {DEFAULT_EPOCHS} if not given.")] = None,
    steps: Annotated[int | None, typer.Option(help="Steps to train for, instead of --epochs.")] = None,
    shuffle: Annotated[bool, typer.Option("--shuffle", help="Deal examples at random instead of by digit.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the first parameters and of the batches.")] = 0,
    report: Annotated[Path | None, typer.Option(help="Write a self-contained HTML page here.")] = None,
    ranks: Annotated[
        int | None, typer.Option(help="Train with so many processes instead, and compare with as many devices.")
    ] = None,
    connect: Annotated[bool, typer.Option("--connect", help="Train as one of a launcher's processes instead.")] = False,
) -> None:
    """Train on 3 devices with treefold, with TensorFlow's rule and on one device, and show which weights are right.

    TensorFlow's rule is written in NumPy, so that TensorFlow is not needed. Then the speed, beside a NumPy loop. Exit
    code 0 means that all checks hold, 1 that one does not.
    """
    own = {"--devices": devices, "--ops": ops, "--num-packs": num_packs, "--report": report}
    _check_mode(own, connect=connect, ranks=ranks)
    devices = _DEVICES if devices is None else devices
    _check_arguments(devices if ranks is None else ranks, epochs=epochs, steps=steps, seed=seed)
    chosen = _make_ops(ops or DemoOps.HIERARCHICAL, num_packs)
    if report is not None:
        check_output("--report", report)
    digits = load_split_digits()
    steps = steps or (epochs or DEFAULT_EPOCHS) * (len(digits.train) // BATCH_SIZE)
    if ranks is not None:
        words = ["demo", "--connect", f"--steps={steps}", f"--seed={seed}", *(["--shuffle"] if shuffle else [])]
        raise typer.Exit(run_ranks([sys.executable, "-m", "treefold.cli", *words], ranks))
    if connect:
        raise typer.Exit(0 if train_connected(digits, steps=steps, seed=seed, shuffle=shuffle) else 1)
    result = _train(digits, ops=chosen, devices=devices, steps=steps, seed=seed, shuffle=shuffle)
    checks = check_result(result)
    speed = measure_speed(chosen, devices=devices, clock=time.perf_counter)
    if report is not None:
        facts = _list_facts(ops=chosen, seed=seed)
        write_atomically(report, render_page(make_page(result, speed, checks, facts=facts)))
    _print_result(result, checks, speed)
    if report is not None:
        typer.echo(f"\nThe report is in {report}.")
    if not all(check.holds for check in checks):
        raise typer.Exit(1)


def _check_arguments(devices: int, *, epochs: int | None, steps: int | None, seed: int) -> None:
    if not 2 <= devices <= CLASSES:  # noqa: PLR2004 - one device has nothing to reduce
        raise CommandError(
            f"--devices got {devices}. It takes 2 to {CLASSES}: each device holds at least one of the {CLASSES} digits."
        )
    if epochs is not None and steps is not None:
        raise CommandError("--epochs and --steps both say how long to train; give one of them.")
    for option, count in (("--epochs", epochs), ("--steps", steps)):
        if count is not None and count < 1:
            raise CommandError(f"{option} got {count}. It takes a number of at least 1.")
    if seed < 0:
        raise CommandError(f"--seed got {seed}. It takes 0 or a positive number.")


def _check_mode(own: Mapping[str, object], *, connect: bool, ranks: int | None) -> None:
    """Refuse options of a training in one process, which one by several processes would not heed."""
    if connect and ranks is not None:
        raise CommandError("--ranks starts processes and --connect joins those of a launcher; give one of them.")
    for option, value in own.items():
        if value is not None and (connect or ranks is not None):
            raise CommandError(
                f"{option} is for devices of one process and means nothing to {'--connect' if connect else '--ranks'}; "
                "leave it out."
            )


def _make_ops(ops: DemoOps, num_packs: int | None) -> CrossDeviceOps:
    """Return the ops; how many packs are allowed is for them to say."""
    if ops is DemoOps.ONE_DEVICE:
        if num_packs is not None:
            raise CommandError(
                f"--num-packs means nothing to --ops {ops.value}, which reduces value by value; leave it out."
            )
        return ReductionToOneDevice()
    make = _PACKING_OPS[ops]
    return make() if num_packs is None else make(num_packs=num_packs)


def _train(digits: Digits, *, ops: CrossDeviceOps, devices: int, steps: int, seed: int, shuffle: bool) -> DemoResult:
    """Train under a progress bar, on stderr, so that stdout holds what came of it and nothing else.

    BLAS gets one thread: for matrices this small more threads wait for each other longer than they work (measured on
    two busy cores: training alone took 0.2 s with one thread, 0.2 s to 7 s with two).
    """
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # noqa: PLC0415 - of the extra

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with threadpool_limits(1, user_api="blas"), progress(*columns) as bar:
        task = bar.add_task("three trainings", total=steps)
        return train_all(
            digits,
            ops=ops,
            devices=devices,
            steps=steps,
            seed=seed,
            shuffle=shuffle,
            on_step=lambda: bar.advance(task),
        )


def _print_result(result: DemoResult, checks: tuple[Check, ...], speed: Speed) -> None:
    """Print what was done, then what it proved: the last three lines are what to remember."""
    echo(describe_work(result), "", tabulate(result), "", str(result.plan), "")
    console = Console(highlight=False, soft_wrap=True)
    for check in checks:
        verdict = Text("ok    ", style="green") if check.holds else Text("failed", style="bold red")
        console.print(verdict, Text(f" {check.claim}: {check.found}"))
    console.print(Text("speed ", style="bold"), Text(f" {speed}"))


def _list_facts(*, ops: CrossDeviceOps, seed: int) -> tuple[tuple[str, str], ...]:
    """Return the small print of a report: what ran, where and when."""
    versions = [f"{name} {importlib.metadata.version(name)}" for name in ("numpy", "scikit-learn")]
    return (
        ("ops", repr(ops)),
        ("seed", str(seed)),
        ("versions", f"treefold {__version__}, Python {platform.python_version()}, {', '.join(versions)}"),
        ("machine", f"{platform.platform()}, {os.cpu_count()} cores"),
        ("written", f"{dt.datetime.now(dt.UTC):%Y-%m-%d %H:%M} UTC"),
    )
