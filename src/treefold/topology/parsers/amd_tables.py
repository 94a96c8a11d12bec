"""The tables that AMD's tools print, one per property of two GPUs, and the machine that they make."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from treefold.errors import ParseError
from treefold.topology import rates
from treefold.topology.graph import Topology
from treefold.topology.machine import Machine
from treefold.topology.parsers.clusters import Clusters

MAX_GPUS = 256
Cells = tuple[tuple[str, ...], ...]

_RANGE = re.compile(r"(\d{1,9})-(\d{1,9})")
_THROUGH_ONE_SOCKET = 2  # hops: 1 is xGMI, 2 the CPU, 3 two CPUs
_LINK_TYPES = {"XGMI", "PCIE"}


@dataclass(frozen=True)
class AmdTables:
    """The rows of ``tables[title]`` for the GPUs ``names``, and the NUMA node of each that has a known one."""

    tool: str
    names: tuple[str, ...]
    tables: Mapping[str, Cells]
    numa: Mapping[int, int] = field(default_factory=dict)

    def titled(self, *words: str) -> Cells:
        """Return the table whose title has one of these words, in lower case; empty if the tool did not print it."""
        return next((cells for title, cells in self.tables.items() if any(w in title.lower() for w in words)), ())


def read_tables(tool: str, sections: Sequence[tuple[str, list[str]]], *, cell: re.Pattern[str]) -> AmdTables:
    """Return the tables of sections (a title and its lines), in each of which a header of names comes first.

    Raises:
        ParseError: a table that is cut off, or whose names differ from another's.

    """
    names: tuple[str, ...] = ()
    tables: dict[str, Cells] = {}
    for title, lines in sections:
        header, *rows = [line.split() for line in lines if line.strip()] or [[]]
        if not names:
            names = tuple(header)
        if tuple(header) != names or not header or len(set(names)) < len(names):
            raise ParseError.inconsistent(tool, f"the header of {title!r} does not name each GPU once")
        if len(names) > MAX_GPUS:
            raise ParseError.too_much("GPUs", len(names), MAX_GPUS)
        rows = rows[: len(names)]
        for name, row in zip(names, rows, strict=False):
            if row[0] != name:
                raise ParseError.inconsistent(tool, f"{title!r} has a row {row[0]!r} where {name!r} should be")
            if len(row) != len(names) + 1 or not all(cell.fullmatch(word) for word in row[1:]):
                raise ParseError.truncated(tool, f"the row of {name} in {title!r} is not {len(names)} cells")
        if len(rows) < len(names):
            raise ParseError.truncated(tool, f"{title!r} has {len(rows)} of {len(names)} rows")
        tables[title] = tuple(tuple(row[1:]) for row in rows)
    return AmdTables(tool, names, tables)


def build(tables: AmdTables) -> Topology:
    """Return the machine; the table of link types is there, others may be missing.

    Raises:
        ParseError: link types that are neither xGMI nor PCIe, or not the same both ways.

    """
    machine = Machine()
    count, types = len(tables.names), tables.titled("link type")
    pairs = list(combinations(range(count), 2))
    for i, j in pairs:
        if types[i][j] not in _LINK_TYPES or types[i][j] != types[j][i]:
            problem = f"{tables.names[i]} and {tables.names[j]} are joined by {types[i][j]} and {types[j][i]}"
            raise ParseError.inconsistent(tables.tool, problem)
    _add_xgmi(machine, tables, [(i, j) for i, j in pairs if types[i][j] == "XGMI"])
    by_pcie = [(i, j) for i, j in pairs if types[i][j] == "PCIE"]
    if by_pcie or tables.numa or count == 1:
        _add_pcie(machine, tables, by_pcie)
    else:
        for number in range(count):
            machine.add(f"gpu:{number}", "device", parent="", gb_per_s=0.0)  # nothing is known of its PCIe
    if not tables.names[0].upper().startswith("GPU"):
        shown = ", ".join(tables.names[:16]) + (" …" if count > 16 else "")  # noqa: PLR2004 - enough for one host
        machine.notes.append(f"gpu:0 and following are, in this order: {shown}.")
    return machine.build(every_pair=False)


def _add_xgmi(machine: Machine, tables: AmdTables, pairs: Sequence[tuple[int, int]]) -> None:
    if not pairs:
        return
    weights, bandwidths = tables.titled("weight"), tables.titled("numa bw", "bandwidth")
    direct = min((_whole(tables, weights[i][j]) for i, j in pairs), default=0) if weights else 0
    indirect = 0
    for i, j in pairs:
        if bandwidths:
            gb_per_s = [_fastest(tables, bandwidths[a][b]) for a, b in ((i, j), (j, i))]
        else:
            gb_per_s = [0.0 if weights and _whole(tables, weights[i][j]) > direct else rates.XGMI_VEGA] * 2
        indirect += not min(gb_per_s)
        if min(gb_per_s):
            machine.add_link(f"gpu:{i}", f"gpu:{j}", gb_per_s=gb_per_s[0], kind="xgmi")
            machine.add_link(f"gpu:{j}", f"gpu:{i}", gb_per_s=gb_per_s[1], kind="xgmi")
    if indirect:
        machine.notes.append(
            "Some pairs reach each other by xGMI through other GPUs only: they are given no link of their own."
        )
    if bandwidths:
        machine.notes.append("xGMI bandwidths are the maxima that the tool states: raw figures, not measured ones.")
    else:
        machine.notes.append(
            f"The tables name neither GPU models nor links per pair: every xGMI pair is taken as one link of "
            f"{rates.XGMI_VEGA:g} GB/s, the slowest kind."
        )


def _add_pcie(machine: Machine, tables: AmdTables, by_pcie: Sequence[tuple[int, int]]) -> None:
    sockets, hops = Clusters(len(tables.names)), tables.titled("hops")
    if tables.numa:
        known = sorted(tables.numa)
        sockets.join((i, j) for i, j in combinations(known, 2) if tables.numa[i] == tables.numa[j])
    elif hops:
        sockets.join((i, j) for i, j in by_pcie if _whole(tables, hops[i][j]) <= _THROUGH_ONE_SOCKET)
    for number, group in enumerate(sockets.groups()):
        name = f"numa:{tables.numa[group[0]]}" if group[0] in tables.numa else f"socket {number}"
        machine.sockets[name] = rates.BETWEEN_UNKNOWN
        for member in group:
            machine.add(f"gpu:{member}", "device", parent=name, gb_per_s=rates.PCIE_GEN3_X16)
    machine.notes.append(
        "The tables show neither PCIe generations nor switches: every GPU is taken to have gen 3 x16 to its socket, "
        f"and sockets to be {rates.BETWEEN_UNKNOWN:g} GB/s apart."
    )


def _fastest(tables: AmdTables, cell: str) -> float:
    """Return GB/s of ``"50000-200000"`` (MB/s, least and most), 0 where nothing is there."""
    found = _RANGE.fullmatch(cell)
    if found is None and cell not in {"N/A", "0", "-"}:
        raise ParseError.inconsistent(tables.tool, f"{cell!r} is no bandwidth")
    return int(found[2]) / 1000 if found else 0.0


def _whole(tables: AmdTables, cell: str) -> int:
    if not re.fullmatch(r"\d{1,6}", cell):
        raise ParseError.inconsistent(tables.tool, f"{cell!r} is no number")
    return int(cell)
