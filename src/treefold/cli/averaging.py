"""The command ``treefold average``: writes a file or a folder, and prints a table of what disagrees."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from treefold.cli.console import echo, progress
from treefold.cli.needs import check_modules
from treefold.cli.tables import Table
from treefold.errors import CheckpointError
from treefold.errors.words import bytes_in_words, counted, printable

if TYPE_CHECKING:
    from treefold.averaging.run import Summary

_MOST_NAMES = 8
_COLUMNS = (TextColumn("averaging"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())


def average(  # noqa: PLR0913 - as many as there are options
    inputs: Annotated[list[str], typer.Argument(help="Files, folders, indexes, or patterns in quotes.")],
    *,
    output: Annotated[Path, typer.Option("--output", "-o", help="The file or folder to write.")],
    op: Annotated[str, typer.Option(help="mean, sum, or combine: Σ wᵢ·xᵢ, not divided.")] = "mean",
    weights: Annotated[str | None, typer.Option(help="One per input: 0.3,0.7 or 1/3,2/3 or @file.")] = None,
    decay: Annotated[str | None, typer.Option(help="Weights of a decay: linear, cosine, 1-sqrt.")] = None,
    last: Annotated[int | None, typer.Option(help="Take the last N inputs, or checkpoints of a folder.")] = None,
    base: Annotated[str | None, typer.Option(help="Average differences from this checkpoint.")] = None,
    key: Annotated[str | None, typer.Option(help="Where a file holds the model: state_dict, or . for its top.")] = None,
    strip_prefix: Annotated[list[str] | None, typer.Option(help="Take this off the names of tensors.")] = None,
    partial: Annotated[bool, typer.Option("--partial", help="Keep what only some inputs have.")] = False,
    only: Annotated[list[str] | None, typer.Option(help="Take tensors of these names: 'model.layers.*'.")] = None,
    skip: Annotated[list[str] | None, typer.Option(help="Leave tensors of these names out.")] = None,
    dtype: Annotated[str | None, typer.Option(help="Write floats in this dtype: bfloat16.")] = None,
    integers: Annotated[
        str | None, typer.Option(help="If integers differ: mean, or first to keep the first's.")
    ] = None,
    max_shard_size: Annotated[str | None, typer.Option(help="Most bytes of a file of a folder: 5GB.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Write nothing, and say what would be.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for programs.")] = False,
) -> None:
    """Write the mean, the sum or a combination of checkpoints, tensor by tensor, in constant memory.

    Floats are summed exactly and rounded once; counters go to the nearest whole number, halves to even. Other integers
    may be codes: unless --integers is given, they must be equal in all inputs, as flags (bool) and 8-bit floats must
    be. Nothing is unpickled. The output appears when it is whole. Exit code 2 means that there is none, and the reason
    is printed.
    """
    check_modules(["ml_dtypes"])
    from treefold.averaging.run import average_checkpoints  # noqa: PLC0415 - what it needs is an extra

    try:
        with progress(*_COLUMNS) as bar:
            task = bar.add_task("", total=None)
            summary = average_checkpoints(
                inputs, output, op=op, weights=weights, decay=decay, last=last, base=base, key=key,
                strip_prefix=strip_prefix or (), partial=partial, only=only or (), skip=skip or (), dtype=dtype,
                integers=integers, max_shard_size=max_shard_size, dry_run=dry_run,
                on_start=lambda nbytes: bar.update(task, total=nbytes),
                on_bytes=lambda nbytes: bar.advance(task, nbytes),
            )  # fmt: skip
    except CheckpointError as error:
        _show_differences(error.differences, inputs[0])
        raise
    for warning in summary.warnings:
        typer.echo(f"treefold: {warning}", err=True)
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(summary), indent=2))
        return
    _show_differences(summary.differences, inputs[0])
    _show(summary, is_dry=dry_run)


def _show_differences(differences: Sequence[tuple[str, str, str, str]], first: str) -> None:
    if differences:
        rows = [[printable(cell) for cell in row] for row in differences]
        echo(Table(["tensor", printable(Path(first).name), "file", "has"], rows, words=(0, 1, 2, 3)))


def _show(summary: Summary, *, is_dry: bool) -> None:
    """Print what was written, or would be, and everything that a reader would not expect."""
    kinds = {"folder" if Path(path).is_dir() else "file" for path in summary.inputs}
    kind = kinds.pop() if len(kinds) == 1 else "checkpoint"
    what = f"{summary.op} of {counted(len(summary.inputs), kind)}: {counted(summary.num_tensors, 'tensor')}"
    typer.echo(f"{'would write the ' if is_dry else ''}{what} in {summary.output}")
    if is_dry:
        typer.echo(f"{bytes_in_words(summary.nbytes)} on disk, about {bytes_in_words(summary.memory_bytes)} of memory")
        typer.echo("\n".join(["inputs:", *(f"  {printable(path)}" for path in summary.inputs)]))
        outputs = [f"  {name}  {bytes_in_words(nbytes)}" for name, nbytes in summary.files.items()]
        if outputs:
            typer.echo("\n".join(["outputs:", *outputs]))
    for names, words in (
        (summary.partial, "in some of the inputs only, averaged over those"),
        (summary.converted, "converted"),
        (sorted(summary.ties), "sharing memory with others, stored once"),
        (summary.others, "left out, being no part of the model"),
        (summary.copied, f"{'to be ' if is_dry else ''}copied from the first input"),
        (summary.not_copied, "not copied"),
    ):
        if names:
            shown = ", ".join(printable(name) for name in names[:_MOST_NAMES])
            more = f" … ({len(names)})" if len(names) > _MOST_NAMES else ""
            typer.echo(f"{words}: {shown}{more}")
