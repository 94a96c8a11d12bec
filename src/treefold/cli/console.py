"""What commands print: words and tables, framed in a terminal and plain in a pipe or a file.

Rich honours ``NO_COLOR`` and knows what a terminal can show.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

import typer
from rich import box
from rich.console import Console
from rich.table import Table as FramedTable
from rich.text import Text

from treefold.report.tables import plain_table

#: Cells of a column of words that are longer may be broken into lines of so many characters, or more.
_PROSE = 24
_FRAME = 3  # characters around a cell, but for the last line


@dataclass(frozen=True, slots=True)
class Table:
    """A table, plain as a string. ``words``: the columns that hold words, set left; numbers are set right."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: Sequence[int] = (0,)

    def __str__(self) -> str:
        """Return the table as plain text."""
        lines = [self.header, *self.rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        header, *rows = (
            [cell.ljust(widths[n]) if n in self.words else cell for n, cell in enumerate(line)] for line in lines
        )
        return plain_table(header, rows)


#: What a command has to say: lines of words, and tables between them.
Block = str | Table


def plain(blocks: Sequence[Block]) -> str:
    """Return blocks as one plain text."""
    return "\n".join(map(str, blocks))


def echo(*blocks: Block) -> None:
    """Print blocks: tables with frames if stdout is a terminal that is wide enough, else plain."""
    console = Console(highlight=False)
    for block in blocks:
        framed = _framed(block, console) if isinstance(block, Table) and sys.stdout.isatty() else None
        if framed is None:
            typer.echo(str(block))
        else:
            console.print(framed)


def refuse(sentence: str) -> None:
    """Print why a command ends, in the one form that all errors have, on stderr."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(Text.assemble(("treefold:", "bold red"), " ", sentence))


def _framed(table: Table, console: Console) -> FramedTable | None:
    """Return a table with a frame; None if it does not fit into the terminal even with broken headers."""
    columns = list(zip(table.header, *table.rows, strict=True))
    for has_broken_headers in (False, True):
        framed = FramedTable(box=box.ROUNDED, header_style="bold", border_style="dim")
        least = 1
        for number, (name, *cells) in enumerate(columns):
            is_prose = number in table.words and max(map(len, cells), default=0) > _PROSE
            parts = name.split() if has_broken_headers else [name]
            width = _PROSE if is_prose else max(map(len, [*parts, *cells]))
            least += _FRAME + width
            framed.add_column(
                Text(textwrap.fill(name, width, break_long_words=False)),
                justify="left" if number in table.words else "right",
                no_wrap=not is_prose,
                min_width=width,
                overflow="fold",
            )
        if least <= console.width:
            for row in table.rows:
                framed.add_row(*map(Text, row))
            return framed
    return None
