"""The tables that AMD's tools print, one per property of two GPUs, and the machine that they describe."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from treefold.errors import ParseError
from treefold.topology import rates
from treefold.topology.graph import Topology
from treefold.topology.machine import MachineFacts
from treefold.topology.parsers.clusters import Clusters

MAX_GPUS = 256
Cells = tuple[tuple[str, ...], ...]
Pair = tuple[int, int]
_KNOWN = "whole numbers, ranges of MB/s, XGMI, PCIE, SELF, N/A and UNKNOWN"

_RANGE = re.compile(r"(\d{1,9})-(\d{1,9})")
_THROUGH_ONE_SOCKET, _FAR = 2, 3  # hops: 1 is xGMI, 2 the CPU, 3 two CPUs
_LINK_TYPES = {"XGMI", "PCIE"}
_MISSING = {"N/A", "-", "UNKNOWN"}  # printed for a value that the tools could not read


@dataclass(frozen=True)
class AmdTables:
    """The rows of ``tables[title]`` for the GPUs ``names``, and the NUMA nodes of GPUs that have a known one."""

    tool: str
    names: tuple[str, ...]
    tables: Mapping[str, Cells]
    numa: Mapping[int, int] = field(default_factory=dict)

    def titled(self, *words: str) -> Cells:
        """Return the table with one of these lower-case words in its title; empty if the tool did not print it."""
        return next((cells for title, cells in self.tables.items() if any(w in title.lower() for w in words)), ())


def read_tables(tool: str, sections: Sequence[tuple[str, list[str]]], *, cell: re.Pattern[str]) -> AmdTables:
    """Return the tables of these sections. A section is a title and its lines, which begin with a header of names.

    Raises:
        ParseError: a table that is cut off, that stands there twice, or whose names differ from another's; a cell that
            no such table has.

    """
    names: tuple[str, ...] = ()
    tables: dict[str, Cells] = {}
    for title, lines in sections:
        if title in tables:
            raise ParseError.two_machines(f"the table {title!r} of {tool} stands there twice")
        header, *rows = [line.split() for line in lines if line.strip()] or [[]]
        if not names:
            names = tuple(header)
        if tuple(header) != names or not header or len(set(names)) < len(names):
            raise ParseError.inconsistent(tool, f"the header of {title!r} does not name each GPU once")
        if len(names) > MAX_GPUS:
            raise ParseError.too_much("GPUs", len(names), MAX_GPUS)
        tables[title] = _checked(rows[: len(names)], names, tool=tool, title=title, cell=cell)
    return AmdTables(tool, names, tables)


def _checked(rows: list[list[str]], names: Sequence[str], *, tool: str, title: str, cell: re.Pattern[str]) -> Cells:
    """Return the cells of rows that begin with their names, after checking that none is missing."""
    for name, row in zip(names, rows, strict=False):
        if row[0] != name:
            raise ParseError.inconsistent(tool, f"{title!r} has a row {row[0]!r} where {name!r} should be")
        if len(row) != len(names) + 1:
            raise ParseError.truncated(tool, f"the row of {name} in {title!r} is not {len(names)} cells")
        strange = next((word for word in row[1:] if not cell.fullmatch(word)), None)
        if strange is not None:
            raise ParseError.unknown_cell(tool, f"the row of {name} in {title!r}", strange, _KNOWN)
    if len(rows) < len(names):
        raise ParseError.truncated(tool, f"{title!r} has {len(rows)} of {len(names)} rows")
    return tuple(tuple(row[1:]) for row in rows)


def build(tables: AmdTables) -> Topology:
    """Return the machine. The table of link types is required; others may be missing.

    A value that the tool could not fill in is missing, and not zero. The other tables then decide about the pair.

    Raises:
        ParseError: link types that are neither xGMI nor PCIe, or not the same both ways.

    """
    machine = MachineFacts()
    count = len(tables.names)
    types = {pair: _link_type(tables, *pair) for pair in combinations(range(count), 2)}
    if None in types.values():
        machine.notes.append("The tool names no link type for some pairs: they are taken to be joined by PCIe only.")
    _add_xgmi(machine, tables, [pair for pair, link_type in types.items() if link_type == "XGMI"])
    by_pcie = [pair for pair, link_type in types.items() if link_type != "XGMI"]
    if by_pcie or tables.numa or count == 1:
        _add_pcie(machine, tables, by_pcie)
    else:
        for number in range(count):
            machine.add(f"gpu:{number}", "device", parent="", gb_per_s=0.0)  # nothing is known of its PCIe
    if not tables.names[0].upper().startswith("GPU"):
        shown = ", ".join(tables.names[:16]) + (" …" if count > 16 else "")  # noqa: PLR2004 - enough for one host
        machine.notes.append(f"gpu:0 and following are, in this order: {shown}.")
    return machine.build(every_pair=False)


def _link_type(tables: AmdTables, i: int, j: int) -> str | None:
    """Return the type of the links between two GPUs, or None if the tool names none in either direction."""
    types = tables.titled("link type")
    found = {types[i][j], types[j][i]} - _MISSING
    pair = f"{tables.names[i]} and {tables.names[j]}"
    if found - _LINK_TYPES:
        raise ParseError.unknown_cell(
            tables.tool, f"the link type of {pair}", min(found - _LINK_TYPES), "XGMI and PCIE"
        )
    if len(found) > 1:
        problem = f"{pair} are joined by {types[i][j]} and {types[j][i]}"
        raise ParseError.inconsistent(tables.tool, problem)
    return next(iter(found), None)


def _add_xgmi(machine: MachineFacts, tables: AmdTables, pairs: Sequence[Pair]) -> None:
    """Add a link for each pair that has one of its own, at the tool's bandwidth or else that of the slowest xGMI."""
    stated = _stated_gb_per_s(tables, pairs)
    unstated = [pair for pair in pairs if pair not in stated]
    # Without weights, a pair that lacks a bandwidth where others have one is indirect, as the tools print it.
    guessed = _least_weight(tables, unstated, among=pairs) if tables.titled("weight") else [] if stated else unstated
    for (i, j), (there, back) in (stated | dict.fromkeys(guessed, (rates.XGMI_VEGA, rates.XGMI_VEGA))).items():
        for a, b, gb_per_s in ((i, j, there), (j, i, back)):
            if gb_per_s:  # a direction that is missing is taken to be as wide as the other, which the machine notes
                machine.add_link(f"gpu:{a}", f"gpu:{b}", gb_per_s=gb_per_s, kind="xgmi")
    if len(guessed) < len(unstated):
        machine.notes.append(
            "Some pairs reach each other by xGMI through other GPUs only: they are given no link of their own."
        )
    if stated:
        machine.notes.append("xGMI bandwidths are the maxima that the tool states: raw figures, not measured ones.")
    if guessed:
        which = f"The tool states no bandwidth for {len(guessed)} of {len(pairs)} xGMI pairs: each of these"
        if not stated:
            which = "The tables name neither GPU models nor links per pair: every xGMI pair"
        machine.notes.append(f"{which} is taken as one link of {rates.XGMI_VEGA:g} GB/s, the slowest kind.")


def _stated_gb_per_s(tables: AmdTables, pairs: Sequence[Pair]) -> dict[Pair, tuple[float, float]]:
    """Return (there, back) in GB/s for the pairs for which the tool states a bandwidth in at least one direction."""
    cells = tables.titled("numa bw", "bandwidth")
    if not cells:
        return {}
    found = {(i, j): (_fastest(tables, cells[i][j]), _fastest(tables, cells[j][i])) for i, j in pairs}
    return {pair: gb_per_s for pair, gb_per_s in found.items() if any(gb_per_s)}


def _least_weight(tables: AmdTables, pairs: Sequence[Pair], *, among: Sequence[Pair]) -> list[Pair]:
    """Return the pairs of the least weight, or of none that is stated; a larger weight means several hops."""
    weights = {(i, j): _whole(tables, tables.titled("weight")[i][j]) for i, j in among}
    least = min((weight for weight in weights.values() if weight is not None), default=None)
    return [pair for pair in pairs if weights[pair] in {least, None}]


def _add_pcie(machine: MachineFacts, tables: AmdTables, by_pcie: Sequence[tuple[int, int]]) -> None:
    sockets, hops = Clusters(len(tables.names)), tables.titled("hops")
    if tables.numa:
        known = sorted(tables.numa)
        sockets.join((i, j) for i, j in combinations(known, 2) if tables.numa[i] == tables.numa[j])
    elif hops:
        sockets.join((i, j) for i, j in by_pcie if (_whole(tables, hops[i][j]) or _FAR) <= _THROUGH_ONE_SOCKET)
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
    """Return GB/s of ``"50000-200000"`` (MB/s, least and most), or 0 if the tool states none."""
    found = _RANGE.fullmatch(cell)
    if found is None and cell not in {*_MISSING, "0"}:
        raise ParseError.inconsistent(tables.tool, f"{cell!r} is no bandwidth")
    return int(found[2]) / 1000 if found else 0.0


def _whole(tables: AmdTables, cell: str) -> int | None:
    """Return a whole number, or None if the tool states none."""
    if cell in _MISSING:
        return None
    if not re.fullmatch(r"\d{1,6}", cell):
        raise ParseError.inconsistent(tables.tool, f"{cell!r} is no number")
    return int(cell)
