"""Which method for which size, as a table that can be written in a line.

In the spirit of the specs of TensorFlow's benchmarks: ``oneshot:32k:twoshot:1M:trees#8:inf`` means one shot up to
32 KiB, two shots up to 1 MiB, eight trees beyond.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from treefold.errors import ArgumentError

#: What a table may name; those with ``#`` also take a number: of trees, or of edges between a root and its devices.
METHODS = ("oneshot", "twoshot", "star", "tree", "shallow#", "trees", "trees#", "rings", "vendor")
_UNITS = {"k": 2**10, "M": 2**20, "G": 2**30}
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,6})?)([kMG]?)")
_METHOD = re.compile(r"([a-z]+)(?:(#)([1-9]\d{0,5}))?")


@dataclass(frozen=True, slots=True)
class SizeRow:
    """``method`` serves values of at most ``up_to_bytes``, and more than the row before."""

    method: str
    up_to_bytes: float


@dataclass(frozen=True, slots=True)
class SizeTable:
    """Rows of growing sizes; the last is infinite.

    Raises:
        ArgumentError: no rows, an unknown method, sizes that do not grow, or a last one that is not infinite.

    >>> table = SizeTable.parse("oneshot:32k:twoshot:1M:trees#8:inf")
    >>> table.method_for(32768), table.method_for(32769), table.method_for(1e12)
    ('oneshot', 'twoshot', 'trees#8')
    >>> str(table)
    'oneshot:32k:twoshot:1M:trees#8:inf'
    """

    rows: tuple[SizeRow, ...]

    def __post_init__(self) -> None:
        """Check the methods and the order of the sizes."""
        for row in self.rows:
            split_method(row.method)
        sizes = [0.0, *(row.up_to_bytes for row in self.rows)]
        if len(sizes) == 1 or sizes[-1] != math.inf or sizes != sorted(set(sizes)):
            raise ArgumentError.size_order([size_text(size) for size in sizes[1:]])

    @classmethod
    def parse(cls, text: str) -> SizeTable:
        """Return the table that a line spells; k, M and G are powers of 1024.

        Raises:
            ArgumentError: the line is no table.

        """
        words = text.split(":")
        if len(words) % 2:
            raise ArgumentError.size_table(text)
        return cls(
            tuple(SizeRow(method, _size(size, text)) for method, size in zip(words[::2], words[1::2], strict=True))
        )

    def method_for(self, nbytes: float) -> str:
        """Return the method for values of ``nbytes`` bytes per replica."""
        return next(row.method for row in self.rows if nbytes <= row.up_to_bytes)

    def __str__(self) -> str:
        """Return the line that ``parse`` reads."""
        return ":".join(f"{row.method}:{size_text(row.up_to_bytes)}" for row in self.rows)


def split_method(method: str) -> tuple[str, int | None]:
    """Return the name and the number of ``"trees#8"``; None where there is no number.

    Raises:
        ArgumentError: a method that no table may name.

    """
    found = _METHOD.fullmatch(method)
    if found is None or found[1] + (found[2] or "") not in METHODS:
        raise ArgumentError.method(method, METHODS)
    return found[1], int(found[3]) if found[3] else None


def size_text(nbytes: float) -> str:
    """Return bytes as a table writes them, exactly.

    >>> size_text(49152), size_text(1000), size_text(math.inf)
    ('48k', '1000', 'inf')
    """
    if nbytes == math.inf:
        return "inf"
    for unit, factor in reversed(_UNITS.items()):
        if nbytes >= factor and nbytes % factor == 0:
            return f"{nbytes / factor:.0f}{unit}"
    return f"{nbytes:.0f}"


def from_choices(choices: Sequence[tuple[float, str]]) -> SizeTable:
    """Return the table of methods by growing size, each serving up to its size, the last one all beyond."""
    rows: list[SizeRow] = []
    for size, method in choices:
        if rows and rows[-1].method == method:
            rows.pop()
        rows.append(SizeRow(method, size))
    rows[-1] = SizeRow(rows[-1].method, math.inf)
    return SizeTable(tuple(rows))


def _size(word: str, text: str) -> float:
    if word == "inf":
        return math.inf
    found = _SIZE.fullmatch(word)
    if found is None:
        raise ArgumentError.size_table(text)
    return float(found[1]) * _UNITS.get(found[2], 1)
