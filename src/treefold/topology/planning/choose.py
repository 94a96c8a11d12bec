"""Which method for which size on a machine, by predicted time, and why."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from treefold.topology.planning.compare import Comparison
from treefold.topology.planning.registry import entry_of

SMALLEST, LARGEST = 2**12, 2**28  # bytes between which methods are compared; beyond, what is best stays best
_FINENESS = 2.0**0.5  # borders between methods are sought to this factor of size
_UNITS = {"G": 2**30, "M": 2**20, "k": 2**10}


@dataclass(frozen=True, slots=True)
class SizeRow:
    """``method`` serves values of at most ``up_to_bytes``, and more than the row before."""

    method: str
    up_to_bytes: float


@dataclass(frozen=True, slots=True)
class SizeTable:
    """Rows of growing sizes, the last of them infinite, and a sentence for each.

    Printed in the spirit of the specs of TensorFlow's benchmarks: ``oneshot:32k:twoshot:1M:trees#8:inf`` means one shot
    up to 32 KiB, two shots up to 1 MiB, eight trees beyond.
    """

    rows: tuple[SizeRow, ...]
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        """Return the methods and sizes in a line."""
        return ":".join(f"{row.method}:{size_text(row.up_to_bytes)}" for row in self.rows)


def choose(comparison: Comparison) -> SizeTable:
    """Return the fastest method for every size from 4 KiB on, between one replica on each device of a machine.

    It compares one shot, two shots, a star, one tree at a centre, trees of least depth, eight trees, the full packing
    and rings; between several hosts also an owner per slice, which is chosen where no other is better. Up to 16 devices
    the best of them are simulated; beyond, all are priced in closed form, as rings always are.

    Raises:
        MissingExtraError: SciPy is not installed.

    """
    if len(comparison.methods.topology.devices) == 1:
        return SizeTable((SizeRow("star", math.inf),), ("There is one device: nothing travels.",))
    sizes = [SMALLEST * 4**power for power in range(round(math.log(LARGEST / SMALLEST, 4)) + 1)]
    borders = list[tuple[float, str]]()
    # Which method is the best changes between sizes slowly: where two neighbours agree, nothing is asked in between.
    for low, high in zip([SMALLEST, *sizes], sizes, strict=False):
        # A method that wins only between two sizes at whose ends another one wins twice is not found: the sizes are a
        # factor of 4 apart.
        borders += [*_borders(comparison, low, high), (high, comparison.best(high))]
    rows = joined_rows(borders)
    return SizeTable(rows, tuple(_reasons(comparison, rows)))


def joined_rows(borders: Sequence[tuple[float, str]]) -> tuple[SizeRow, ...]:
    """Return the rows of (size, method) by growing size: neighbours of one method joined, the last row infinite."""
    rows: list[SizeRow] = []
    for size, method in borders:
        if rows and rows[-1].method == method:
            rows.pop()
        rows.append(SizeRow(method, size))
    return (*rows[:-1], SizeRow(rows[-1].method, math.inf))


def _borders(comparison: Comparison, low: int, high: int) -> list[tuple[float, str]]:
    """Return the largest size between these at which each method but the last is the fastest.

    Sizes are halved on a logarithmic scale until one method is best at both ends, or the ends are near each other.
    """
    if comparison.best(low) == comparison.best(high):
        return []
    # Whole KiB, so that the table can print the border exactly as it holds.
    middle = round(math.sqrt(low * high) / 1024) * 1024
    if high <= low * _FINENESS or not low < middle < high:
        return [(float(low), comparison.best(low))]
    return [*_borders(comparison, low, middle), *_borders(comparison, middle, high)]


def _reasons(comparison: Comparison, rows: Sequence[SizeRow]) -> list[str]:
    """Return a sentence per row: what the method is good at, and by how much at the row's upper end."""
    sentences, low = [], 0.0
    for row in rows:
        # Only sizes that were compared have prices; the largest of the row is its upper end, or next to it.
        size = max(size for size in comparison.seconds if low < size <= row.up_to_bytes)
        mine = comparison.seconds[size][row.method]
        others = sorted((seconds, name) for name, seconds in comparison.seconds[size].items() if name != row.method)
        sizes = f"Above {size_text(low)}B" if row.up_to_bytes == math.inf else f"Up to {size_text(row.up_to_bytes)}B"
        text = f"{sizes}: {row.method}, {entry_of(row.method).reason}; "
        text += f"{mine * 1e6:.4g} µs at {size_text(size)}B"
        sentences.append(f"{text}, {others[0][1]} {others[0][0] * 1e6:.4g} µs." if others else f"{text}.")
        low = row.up_to_bytes
    return sentences


def size_text(nbytes: float) -> str:
    """Return bytes as a table writes them, exactly; k, M and G are powers of 1024.

    >>> size_text(49152), size_text(1000), size_text(math.inf)
    ('48k', '1000', 'inf')
    """
    if nbytes == math.inf:
        return "inf"
    for unit, factor in _UNITS.items():
        if nbytes >= factor and nbytes % factor == 0:
            return f"{nbytes / factor:.0f}{unit}"
    return f"{nbytes:.0f}"
