"""A run: rows of measurements, and the machine that they were taken on; written as JSON and as CSV."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from treefold.bench.clock import Spread

_VERSION = 1


@dataclass(frozen=True, slots=True)
class Rival:
    """Another way to do the same work, measured in turns with treefold's; or why it was not measured.

    ``ratio`` is its time over treefold's in the same rounds. ``wrong`` counts elements that differ from the oracle's.
    """

    peer: str
    form: str
    time_s: Spread | None = None
    ratio: Spread | None = None
    wrong: int | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """One work and its times.

    ``of_limit`` is the limit's time over treefold's in the same rounds, ``limit_by`` the loop that the limit was
    measured by.

    >>> row = Row("x", nbytes=8_000_000, count=2_000_000, time_s=Spread(0.001, 0.001, 0.001, 0.001))
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
    rivals: tuple[Rival, ...] = ()

    @property
    def algbw_gb_per_s(self) -> float:
        """Bytes of one replica over the time, in 10⁹ bytes per second."""
        return self.nbytes / self.time_s.median / 1e9

    @property
    def busbw_gb_per_s(self) -> float:
        """The same times 2(n − 1)/n, what each device of an ideal ring would send and receive."""
        return self.algbw_gb_per_s * 2 * (self.devices - 1) / self.devices


@dataclass(frozen=True, slots=True)
class Run:
    """Rows measured on one machine on one day. ``copy_gb_per_s``: read + written by a plain copy with all threads."""

    date: str
    machine: Mapping[str, str]
    versions: Mapping[str, str]
    rows: tuple[Row, ...]
    copy_gb_per_s: Spread | None = None
    command: str = ""
    notes: tuple[str, ...] = field(default=())

    def to_json(self) -> str:
        """Return the run as JSON, with the derived bandwidths beside what was measured."""
        data = dataclasses.asdict(self)
        for entry, row in zip(data["rows"], self.rows, strict=True):
            entry |= {name: getattr(row, name) for name in _DERIVED}
        return json.dumps({"treefold_bench": _VERSION, **data}, indent=1, ensure_ascii=False) + "\n"


_DERIVED = ("algbw_gb_per_s", "busbw_gb_per_s")
_PLAIN = tuple(f.name for f in dataclasses.fields(Row) if f.name not in {"time_s", "limit_s", "of_limit", "rivals"})
_PARTS = tuple(f.name for f in dataclasses.fields(Spread))
_SPREADS = ("time_s", "limit_s", "of_limit")
_CSV = (*_PLAIN, *(f"{name}_{part}" for name in _SPREADS for part in _PARTS), *_DERIVED)


def rows_to_csv(rows: Iterable[Row]) -> str:
    """Return a line per row; rivals have lines of their own, with ``peer`` and ``form``."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [*_CSV, "peer", "form", "note"], lineterminator="\n")
    writer.writeheader()
    for row in rows:
        plain = {name: getattr(row, name) for name in _PLAIN}
        derived = {name: getattr(row, name) for name in _DERIVED}
        writer.writerow(plain | derived | _cells(row.time_s, row.limit_s, row.of_limit) | {"peer": "treefold"})
        for rival in row.rivals:
            names = {"peer": rival.peer, "form": rival.form, "note": rival.note, "wrong": rival.wrong}
            # A rival's share of treefold's time stands where treefold's share of the limit does.
            writer.writerow(plain | _cells(rival.time_s, None, rival.ratio) | names)
    return text.getvalue()


def _cells(*spreads: Spread | None) -> dict[str, float]:
    return {
        f"{name}_{part}": getattr(spread, part)
        for name, spread in zip(_SPREADS, spreads, strict=True)
        if spread is not None
        for part in _PARTS
    }
