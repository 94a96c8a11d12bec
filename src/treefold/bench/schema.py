"""What a run says: rows of measurements, the machine they were taken on; to JSON and back, to CSV and back."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from treefold.bench.clock import Spread
from treefold.errors import BenchError

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
    accumulate: str = "wide"
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

    @classmethod
    def from_json(cls, text: str) -> Run:
        """Return the run that ``to_json`` wrote; ``BenchError`` for anything else."""
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:  # no JSON; integers of thousands of digits; thousands of levels
            raise BenchError.not_a_run(str(error)) from None
        if not isinstance(data, dict) or data.pop("treefold_bench", None) != _VERSION:
            raise BenchError.not_a_run(f"it has no 'treefold_bench': {_VERSION}")
        try:
            rows = tuple(_row(entry) for entry in data.pop("rows"))
            copy = _spread(data.pop("copy_gb_per_s"))
            return cls(rows=rows, copy_gb_per_s=copy, notes=tuple(data.pop("notes")), **data)
        except (KeyError, TypeError, AttributeError) as error:
            raise BenchError.not_a_run(f"{type(error).__name__}: {error}") from None


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


def rows_from_csv(text: str) -> tuple[Row, ...]:
    """Return the rows that ``rows_to_csv`` wrote."""
    rows: list[Row] = []
    for cells in csv.DictReader(io.StringIO(text)):
        if set(cells) != {*_CSV, "peer", "form", "note"}:
            raise BenchError.not_a_run("its columns are others")
        time, limit, share = (_spread_of_cells(cells, name) for name in _SPREADS)
        if cells["peer"] != "treefold" or cells["form"]:
            wrong = int(cells["wrong"]) if cells["wrong"] else None
            rival = Rival(cells["peer"], cells["form"], time, share, wrong, cells["note"])
            rows[-1] = dataclasses.replace(rows[-1], rivals=(*rows[-1].rivals, rival))
        elif time is not None:
            plain: dict[str, Any] = {name: _typed(name, cells[name]) for name in _PLAIN}
            rows.append(Row(**plain, time_s=time, limit_s=limit, of_limit=share))
    return tuple(rows)


def _typed(name: str, cell: str) -> Any:
    return cell if name in {"name", "dtype", "op", "placement", "accumulate", "limit_by"} else int(cell)


def _cells(*spreads: Spread | None) -> dict[str, float]:
    return {
        f"{name}_{part}": getattr(spread, part)
        for name, spread in zip(_SPREADS, spreads, strict=True)
        if spread is not None
        for part in _PARTS
    }


def _spread_of_cells(cells: Mapping[str, str], name: str) -> Spread | None:
    parts = [cells[f"{name}_{part}"] for part in _PARTS]
    return Spread(*map(float, parts)) if all(parts) else None


def _spread(data: Mapping[str, float] | None) -> Spread | None:
    return None if data is None else Spread(**data)


def _row(data: Mapping[str, Any]) -> Row:
    fields = {name: value for name, value in data.items() if name not in _DERIVED}
    spreads: dict[str, Any] = {name: _spread(fields.pop(name)) for name in _SPREADS}
    rivals = tuple(
        Rival(**{**entry, "time_s": _spread(entry["time_s"]), "ratio": _spread(entry["ratio"])})
        for entry in fields.pop("rivals")
    )
    return Row(**fields, **spreads, rivals=rivals)
