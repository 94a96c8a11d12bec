"""The output of commands: words and tables, framed in a terminal and plain in a pipe or a file.

Rich honours ``NO_COLOR`` and detects the abilities of a terminal.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import typer
from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table as FramedTable
from rich.text import Text

from treefold.cli.tables import Table

#: The least width of a column of words: longer cells may be broken into lines.
_PROSE = 24
_FRAME = 3  # Characters around a cell, but for the last line.

#: A part of a command's output: lines of words, or a table.
Block = str | Table


def echo(*blocks: Block) -> None:
    """Print blocks: tables with frames if stdout is a terminal that is wide enough, else plain."""
    console = Console(highlight=False)
    for block in blocks:
        framed = _framed(block, console) if isinstance(block, Table) and sys.stdout.isatty() else None
        if framed is None:
            typer.echo(str(block))
        else:
            console.print(framed)


def progress(*columns: ProgressColumn, is_automatic: bool = True, is_transient: bool = False) -> Progress:
    """Return a progress bar for stderr, which shows nothing unless stderr is a terminal.

    ``is_automatic``: a thread of its own redraws it. ``is_transient``: it is erased at the end.
    """
    console, hidden = Console(stderr=True), not sys.stderr.isatty()
    return Progress(*columns, console=console, auto_refresh=is_automatic, transient=is_transient, disable=hidden)


def counting_columns() -> Sequence[ProgressColumn]:
    """Return the columns of a bar that counts parts: how many are done, the time so far, and the current part."""
    words = TextColumn("{task.description}")
    return SpinnerColumn(), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), words


@contextlib.contextmanager
def steps(count: int) -> Iterator[Callable[[str], None]]:
    """Show on stderr, in a terminal, how many of ``count`` steps are done; yield a function to call at each start."""
    with progress(*counting_columns(), is_transient=True) as bar:
        task, done = bar.add_task("starting", total=count), itertools.count()
        yield lambda name: bar.update(task, description=name, completed=next(done))


def refuse(sentence: str) -> None:
    """Print on stderr why a command ends, in the one form that all errors have."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(Text.assemble(("treefold:", "bold red"), " ", sentence))


def _framed(table: Table, console: Console) -> FramedTable | None:
    """Return a table with a frame; None if the terminal is too narrow."""
    columns = list(zip(table.header, *table.rows, strict=True))
    widths = _widths(columns, table.words, console.width - 1 - _FRAME * len(columns))
    if widths is None:
        return None
    framed = FramedTable(box=box.ROUNDED, header_style="bold", border_style="dim")
    for number, (name, width) in enumerate(zip(table.header, widths, strict=True)):
        justify: Literal["left", "right"] = "left" if number in table.words else "right"
        framed.add_column(Text(name), justify=justify, width=width, overflow="fold")
    for row in table.rows:
        framed.add_row(*map(Text, row))
    return framed


def _widths(columns: Sequence[Sequence[str]], words: Sequence[int], room: int) -> list[int] | None:
    """Return the widths of columns that fit into ``room`` characters, or None if they cannot fit.

    Long cells of words are broken into lines first, then headers, then all cells between words. Numbers are never
    broken.
    """
    whole = [max(map(len, column)) for column in columns]
    cells = [max(map(len, (*name.split(), *cells))) for name, *cells in columns]
    parts = [max(len(part) for cell in column for part in (*cell.split(), "")) for column in columns]
    for tried in (whole, cells, parts):
        least = [min(width, _PROSE) if number in words else width for number, width in enumerate(tried)]
        spare = room - sum(least)
        if spare >= 0:
            break
    else:
        return None
    for number, width in enumerate(whole):  # The spare room goes to the first columns.
        more = min(spare, width - least[number])
        least[number] += more
        spare -= more
    return least
