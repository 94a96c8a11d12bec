"""A run as tables: one line per work, one line per rival."""

from __future__ import annotations

from collections.abc import Sequence

from treefold.bench.clock import Spread
from treefold.bench.schema import Rival, Row

HEADER = (
    "work", "size (B)", "count", "type", "op", "where", "time (µs)", "p99 (µs)",
    "algbw (GB/s)", "busbw (GB/s)", "% of limit", "#wrong",
)  # fmt: skip
RIVAL_HEADER = ("work", "peer", "form", "time (µs)", "p99 (µs)", "peer / treefold", "#wrong")

_NONE = "—"


def row_cells(row: Row) -> list[str]:
    """Return a row's cells under ``HEADER``."""
    return [
        row.name,
        str(row.nbytes),
        str(row.count),
        row.dtype,
        row.op,
        row.placement,
        format_us(row.time_s.median),
        format_us(row.time_s.p99),
        f"{row.algbw_gb_per_s:.2f}",
        f"{row.busbw_gb_per_s:.2f}",
        _NONE if row.of_limit is None else format_spread(row.of_limit, 100, 0),
        str(row.wrong),
    ]


def rival_cells(row: Row, rival: Rival) -> list[str]:
    """Return a rival's cells under ``RIVAL_HEADER``; of one that was not measured, the reason."""
    name = f"{row.name} {row.placement}" if row.dtype == "float32" else f"{row.name} {row.dtype} {row.placement}"
    if rival.time_s is None or rival.ratio is None:
        return [name, rival.peer, rival.note, _NONE, _NONE, _NONE, _NONE]
    return [
        name,
        rival.peer,
        rival.form,
        format_us(rival.time_s.median),
        format_us(rival.time_s.p99),
        format_spread(rival.ratio, 1, 2),
        _NONE if rival.wrong is None else str(rival.wrong),
    ]


def rival_rows(rows: Sequence[Row]) -> list[list[str]]:
    """Return the cells of all rivals."""
    return [rival_cells(row, rival) for row in rows for rival in row.rivals]


def format_us(seconds: float) -> str:
    """Return seconds as microseconds, to three digits or to the microsecond.

    >>> format_us(0.00001234), format_us(0.0123456)
    ('12.3', '12346')
    """
    micro = seconds * 1e6
    return f"{micro:.3g}" if micro < 100 else f"{micro:.0f}"  # noqa: PLR2004 - three digits


def format_spread(spread: Spread, factor: float, digits: int) -> str:
    """Return the median and, in brackets, the quartiles.

    >>> format_spread(Spread(0.912, 0.9, 0.93, 1.0), 100, 0)
    '91 [90–93]'
    """
    median, low, high = (f"{part * factor:.{digits}f}" for part in (spread.median, spread.low, spread.high))
    return f"{median} [{low}–{high}]"
