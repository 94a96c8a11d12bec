"""Tables: plain for a terminal or an issue, Markdown to be pasted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Table(NamedTuple):
    """A header and rows with as many cells. ``words``: the columns of words, aligned left; others are aligned right."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: Sequence[int] = (0,)

    def __str__(self) -> str:
        """Return the table as plain text."""
        return plain_table(*self)

    def to_markdown(self) -> str:
        """Return the table as Markdown."""
        return markdown_table(*self)


def plain_table(header: Sequence[str], rows: Sequence[Sequence[str]], words: Sequence[int] = (0,)) -> str:
    """Return a table in columns. Columns of words are aligned left, and others right, so that numbers line up.

    >>> print(plain_table(["devices", "seconds"], [["three", "0.25"], ["eight", "12.5"]]))
    devices  seconds
    -------  -------
    three       0.25
    eight       12.5
    """
    widths = _widths(header, rows)
    lines = [header, ["-" * width for width in widths], *rows]
    return "\n".join("  ".join(_aligned(line, widths, words)).rstrip() for line in lines)


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]], words: Sequence[int] = (0,)) -> str:
    r"""Return a Markdown table with aligned columns in its source; those of words are aligned left.

    >>> print(markdown_table(["devices", "seconds"], [["a|b", "0.25"]]))
    | devices | seconds |
    | :------ | ------: |
    | a\|b    |    0.25 |
    """
    header = [_escaped(cell) for cell in header]
    rows = [[_escaped(cell) for cell in row] for row in rows]
    widths = _widths(header, rows)
    rules = ["-" * (width - 1) for width in widths]
    rule = [f":{dashes}" if index in words else f"{dashes}:" for index, dashes in enumerate(rules)]
    return "\n".join(f"| {' | '.join(_aligned(line, widths, words))} |" for line in (header, rule, *rows))


def _widths(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(2, *map(len, column)) for column in zip(header, *rows, strict=True)]


def _aligned(cells: Sequence[str], widths: Sequence[int], words: Sequence[int] = (0,)) -> list[str]:
    pairs = enumerate(zip(cells, widths, strict=True))
    return [cell.ljust(width) if number in words else cell.rjust(width) for number, (cell, width) in pairs]


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|").replace("\n", " ")
