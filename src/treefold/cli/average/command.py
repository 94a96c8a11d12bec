"""The command ``treefold average``: arguments in, one file out, and a table of what disagrees."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from treefold.calls.weights import read_weights
from treefold.cli.average.kinds import modules_for
from treefold.cli.console import echo, progress
from treefold.cli.extras import check_modules
from treefold.errors import CheckpointError
from treefold.errors.words import counted, printable
from treefold.fold import Fold
from treefold.reduce_op import ReduceOp
from treefold.report.tables import Table


class AverageOp(enum.StrEnum):
    """What ``--op`` names."""

    MEAN = "mean"
    SUM = "sum"


def average(
    files: Annotated[list[Path], typer.Argument(help="Checkpoints: .safetensors, .npz, or PyTorch's.")],
    *,
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write: .safetensors or .npz.")],
    op: Annotated[AverageOp, typer.Option(help="What to write of each tensor.")] = AverageOp.MEAN,
    weights: Annotated[str | None, typer.Option(help="One number per file, for the mean: 1,2,0.5")] = None,
) -> None:
    """Write the mean or the sum of checkpoints, tensor by tensor, in constant memory.

    Floats are summed exactly and rounded once. Integers keep their dtype: their mean is rounded to the nearest whole
    number, halves to even. Flags (bool) and 8-bit floats must be the same in all files. Nothing is unpickled.
    The output appears when it is whole; exit code 2 means that there is none, and why is said.
    """
    fold = _make_fold(ReduceOp.parse(op.value), weights, len(files))
    check_modules(modules_for([*files, output]))
    from treefold.cli.average.run import Run  # noqa: PLC0415 - what it needs is an extra

    with Run(files, output, fold) as run:
        if run.differences:
            rows = [[printable(cell) for cell in row] for row in run.differences]
            echo(Table(["tensor", printable(files[0].name), "file", "has"], rows, words=(0, 1, 2, 3)))
            raise CheckpointError.disagreement(len({row[0] for row in run.differences}), len(files))
        columns = (TextColumn("averaging"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
        with progress(*columns) as bar:
            task = bar.add_task("", total=run.nbytes)
            run.write(lambda nbytes: bar.advance(task, nbytes))
        typer.echo(f"{op.value} of {counted(len(files), 'file')}: {counted(run.num_tensors, 'tensor')} in {output}")


def _make_fold(op: ReduceOp, weights: str | None, num_files: int) -> Fold:
    numbers = read_weights(None if weights is None else _read_numbers(weights), op)
    if numbers is not None and len(numbers) != num_files:
        raise CheckpointError.weight_count(len(numbers), num_files)
    return Fold(op, weights=numbers)


def _read_numbers(text: str) -> Sequence[float]:
    try:
        return [float(number) for number in text.split(",")]
    except ValueError:
        raise CheckpointError.weights_text(text) from None
