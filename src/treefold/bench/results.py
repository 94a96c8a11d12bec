"""The results of measurements as data: rows and runs, written as JSON, as CSV, and as cells of tables."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from treefold.bench.clock import Spread

_VERSION = 1


@dataclass(frozen=True, slots=True)
class BaselineRow:
    """The times of a baseline, measured in turns with treefold, or the reason why there are none.

    Attributes:
        peer: The baseline's name. Written files call it so, and all baselines ``rivals``.
        form: The form of the work.
        ratio: Its time over treefold's in the same rounds.
        wrong: The number of elements that differ from the oracle's.
        note: The reason why it was not measured.

    """

    peer: str
    form: str
    time_s: Spread | None = None
    ratio: Spread | None = None
    wrong: int | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class WorkRow:
    """One work and its times.

    ``of_limit`` is the limit's time over treefold's in the same rounds, and ``limit_by`` the loop that reached the
    limit.

    >>> row = WorkRow("x", nbytes=8_000_000, count=2_000_000, time_s=Spread(0.001, 0.001, 0.001, 0.001))
    >>> row.algbw_gb_per_s, row.busbw_gb_per_s
    (8.0, 14.0)
    """

    name: str
    nbytes: int
    count: int
    time_s: Spread
    tensors: int = 1
    dtype: str = "float32"
    op: str = "sum"
    devices: int = 8
    placement: str = "in-place"
    accumulate: str = "exact"
    threads: int = 2
    calls: int = 1
    limit_by: str = ""
    limit_s: Spread | None = None
    of_limit: Spread | None = None
    wrong: int = 0
    rivals: tuple[BaselineRow, ...] = ()

    @property
    def algbw_gb_per_s(self) -> float:
        """Bytes of one replica over the time, in 10⁹ bytes per second."""
        return self.nbytes / self.time_s.median / 1e9

    @property
    def busbw_gb_per_s(self) -> float:
        """The algorithm bandwidth times 2(n − 1)/n, which each device of an ideal ring would send and receive."""
        return self.algbw_gb_per_s * 2 * (self.devices - 1) / self.devices


@dataclass(frozen=True, slots=True)
class Run:
    """Rows measured on one machine on one day. ``copy_gb_per_s``: read + written by a plain copy with all threads."""

    date: str
    machine: Mapping[str, str]
    versions: Mapping[str, str]
    rows: tuple[WorkRow, ...]
    copy_gb_per_s: Spread | None = None
    command: str = ""
    notes: tuple[str, ...] = field(default=())

    def to_json(self) -> str:
        """Return the run as JSON, with derived bandwidths beside the measured times."""
        data = dataclasses.asdict(self)
        for entry, row in zip(data["rows"], self.rows, strict=True):
            entry |= {name: getattr(row, name) for name in _DERIVED}
        return json.dumps({"treefold_bench": _VERSION, **data}, indent=1, ensure_ascii=False) + "\n"


_DERIVED = ("algbw_gb_per_s", "busbw_gb_per_s")
_PLAIN = tuple(f.name for f in dataclasses.fields(WorkRow) if f.name not in {"time_s", "limit_s", "of_limit", "rivals"})
_PARTS = tuple(f.name for f in dataclasses.fields(Spread))
_SPREADS = ("time_s", "limit_s", "of_limit")
_CSV = (*_PLAIN, *(f"{name}_{part}" for name in _SPREADS for part in _PARTS), *_DERIVED)


def rows_to_csv(rows: Iterable[WorkRow]) -> str:
    """Return a line per row. Baselines have lines of their own, with ``peer`` and ``form``."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [*_CSV, "peer", "form", "note"], lineterminator="\n")
    writer.writeheader()
    for row in rows:
        plain = {name: getattr(row, name) for name in _PLAIN}
        derived = {name: getattr(row, name) for name in _DERIVED}
        writer.writerow(plain | derived | _cells(row.time_s, row.limit_s, row.of_limit) | {"peer": "treefold"})
        for baseline in row.rivals:
            names = {"peer": baseline.peer, "form": baseline.form, "note": baseline.note, "wrong": baseline.wrong}
            # A baseline's share of treefold's time stands where treefold's share of the limit does.
            writer.writerow(plain | _cells(baseline.time_s, None, baseline.ratio) | names)
    return text.getvalue()


def _cells(*spreads: Spread | None) -> dict[str, float]:
    return {
        f"{name}_{part}": getattr(spread, part)
        for name, spread in zip(_SPREADS, spreads, strict=True)
        if spread is not None
        for part in _PARTS
    }


HEADER = (
    "work", "size (B)", "count", "type", "op", "where", "time (µs)", "p99 (µs)",
    "algbw (GB/s)", "busbw (GB/s)", "% of limit", "#wrong",
)  # fmt: skip
BASELINE_HEADER = ("work", "peer", "form", "time (µs)", "p99 (µs)", "peer / treefold", "#wrong")

_NONE = "—"


def row_cells(row: WorkRow) -> list[str]:
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


def baseline_cells(row: WorkRow, baseline: BaselineRow) -> list[str]:
    """Return a baseline's cells under ``BASELINE_HEADER``; if it was not measured, the reason."""
    name = f"{row.name} {row.placement}" if row.dtype == "float32" else f"{row.name} {row.dtype} {row.placement}"
    if baseline.time_s is None or baseline.ratio is None:
        return [name, baseline.peer, baseline.note, _NONE, _NONE, _NONE, _NONE]
    return [
        name,
        baseline.peer,
        baseline.form,
        format_us(baseline.time_s.median),
        format_us(baseline.time_s.p99),
        format_spread(baseline.ratio, 1, 2),
        _NONE if baseline.wrong is None else str(baseline.wrong),
    ]


def baseline_rows(rows: Sequence[WorkRow]) -> list[list[str]]:
    """Return the cells of all baselines."""
    return [baseline_cells(row, baseline) for row in rows for baseline in row.rivals]


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
