"""Reads what ``treefold bench`` writes, as a program without treefold's classes would."""

import csv
import dataclasses
import io
import json

from treefold.bench.clock import Spread
from treefold.bench.results import BaselineRow, Run, WorkRow

_DERIVED = ("algbw_gb_per_s", "busbw_gb_per_s")
_PARTS = ("median", "low", "high", "p99")
_WORDS = ("name", "dtype", "op", "placement", "accumulate", "limit_by")


def run_of_json(text):
    """Return the run of a JSON file."""
    data = json.loads(text)
    assert data.pop("treefold_bench") == 1
    rows = []
    for row in data.pop("rows"):
        fields = {name: value for name, value in row.items() if name not in _DERIVED}
        fields["rivals"] = tuple(BaselineRow(**_with_spreads(rival, "time_s", "ratio")) for rival in row["rivals"])
        rows.append(WorkRow(**_with_spreads(fields, "time_s", "limit_s", "of_limit")))
    return Run(rows=tuple(rows), notes=tuple(data.pop("notes")), **_with_spreads(data, "copy_gb_per_s"))


def rows_of_csv(text):
    """Return the rows of a CSV file; lines of a peer or a form belong to the row above."""
    rows = []
    for cells in csv.DictReader(io.StringIO(text)):
        time, limit, share = (_spread_of_cells(cells, name) for name in ("time_s", "limit_s", "of_limit"))
        peer, form, note = cells.pop("peer"), cells.pop("form"), cells.pop("note")
        fields = {k: v for k, v in cells.items() if not k.endswith(_PARTS) and k not in _DERIVED}
        if peer == "treefold" and not form:
            plain = {name: cell if name in _WORDS else int(cell) for name, cell in fields.items()}
            rows.append([WorkRow(**plain, time_s=time, limit_s=limit, of_limit=share), []])
        else:
            wrong = int(cells["wrong"]) if cells["wrong"] else None
            rows[-1][1].append(BaselineRow(peer, form, time, share, wrong, note))
    return tuple(dataclasses.replace(row, rivals=tuple(rivals)) for row, rivals in rows)


def _with_spreads(data, *names):
    return data | {name: Spread(**data[name]) for name in names if data[name] is not None}


def _spread_of_cells(cells, name):
    parts = [cells[f"{name}_{part}"] for part in _PARTS]
    return Spread(*map(float, parts)) if all(parts) else None
