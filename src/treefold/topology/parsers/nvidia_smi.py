"""``nvidia-smi topo -m``, as people paste it.

The table has the relation of any two GPUs or NICs: NV# (bonded NVLinks), PIX (one PCIe bridge), PXB (several), PHB (a
host bridge), NODE (two of them), SYS or SOC (between sockets). GPU models and PCIe generations are not in it. Where
NVLink hides the PCIe relation, the table does not tell which GPUs share a switch. Several machines fit; the narrowest
is returned.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from treefold.errors import ParseError
from treefold.topology import rates
from treefold.topology.graph import Topology
from treefold.topology.machine import SWITCH_NAMES, MachineFacts
from treefold.topology.parsers.clusters import Clusters

MAX_ROWS = 256
TOOL = "nvidia-smi topo -m"

_CELL = re.compile(r"X|NV\d{1,3}|C2C|PIX|PXB|PXN|P2C|PHB|NODE|SYS|SOC")
_CELLS = re.compile(rf"(?:{_CELL.pattern}){{1,256}}")  # a full column leaves no blank before the next: NODENODE
_GPU = re.compile(r"GPU(\d{1,4})")
_PEER_CELLS = r"(?:X\s+)?(?:OK|CNS|GNS|TNS|NS|DR|U)\b"  # topo -p2p
_ROW = r"^[ \t>]{0,80}GPU\d{1,4}\s+"
_MATCH = re.compile(rf"{_ROW}(?!{_PEER_CELLS}){_CELLS.pattern}\s", re.MULTILINE)
_PEERS = re.compile(_ROW + _PEER_CELLS, re.MULTILINE)
_KNOWN = "X, NV#, C2C, PIX, PXB, PXN, P2C, PHB, NODE, SYS and SOC"
_CELL_LIKE = re.compile(r"(?!GPU|NIC|CPU)[A-Z][A-Z0-9]{1,7}|N/A|-")
_MIG = re.compile(r"^[ \t>]{0,80}MIG[ \t\d]", re.MULTILINE)
_HEADER = re.compile(r"(?:^|[\s\]>:|)}*])GPU\d{1,4}\s*(?:GPU|NIC|mlx|CPU|$)")
_COLUMN = re.compile(r"GPU\d{1,4}(?!\d)|NIC\d{1,4}(?!\d)|[a-z][a-z_]{0,15}\d[\w.-]{0,40}")
_HIDES_NVLINKS = re.compile(r"nvidia-smi topo -mp\b")
_UNKNOWN = "?"  # Between two NICs if the rows of both are cut off.
_ONE_SWITCH, _ONE_SOCKET, _APART = {"PIX", "PXB"}, {"PIX", "PXB", "PHB", "NODE"}, {"SYS", "SOC"}
_MOST_DIRECT, _MOST = 18, 36  # NVLinks of a GPU to others; of any GPU: more than the former lead to an NVSwitch


@dataclass(frozen=True)
class SmiTable:
    """The relations of GPUs and NICs: ``cells[i][j]`` is that of ``names[i]`` to ``names[j]``.

    Attributes:
        cpus: The CPUs near each.
        cut: The names of rows that were cut off and read from the columns of others.

    """

    names: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]
    cpus: tuple[str, ...]
    cut: tuple[str, ...] = ()


def matches(text: str) -> bool:
    """Tell whether this is the format."""
    return _MATCH.search(text) is not None and "between two gpus" not in text.lower()  # else tables of rocm-smi


def has_peer_access(text: str) -> bool:
    """Tell whether there is a table of ``nvidia-smi topo -p2p``, which does not describe links."""
    return _PEERS.search(text) is not None


def parse(text: str) -> Topology:
    """Return the narrowest machine that fits the table; tables of ``nvidia-smi topo -p2p`` beside it are ignored.

    Raises:
        ParseError: a table that is cut off or contradicts itself, or tables of two machines.

    """
    table = read_table(text)
    machine = MachineFacts()
    gpus = {name: f"gpu:{int(found[1])}" for name in table.names if (found := _GPU.fullmatch(name))}
    if len(set(gpus.values())) < len(gpus):
        raise ParseError.inconsistent(TOOL, "two rows have the same GPU")
    machine.unshown = "nvlink" if _HIDES_NVLINKS.search(text) else ""
    _add_nvlinks(machine, table, gpus)
    _add_pcie(machine, table, gpus)
    if table.cut:
        machine.notes.append(f"Rows are cut off, and read from the columns of the others: {', '.join(table.cut)}.")
    return machine.build(every_pair=False)


def read_table(text: str) -> SmiTable:
    """Return the table in a paste, without prompts, legends and colours; separators may be missing in the header.

    Raises:
        ParseError: a row or a part of one is missing, or two cells of one pair differ.

    """
    names: list[str] = []
    cells: list[tuple[str, ...]] = []
    cpus: list[str] = []
    header = ""
    for line in text.splitlines():
        if _PEERS.match(line):
            header = header if names else ""  # it was that of this other table
            continue
        words = _words(line)
        if not header and not names and _HEADER.search(line):
            header = line
        if len(words) > 1 and _CELLS.fullmatch(words[1]) and not _CELLS.fullmatch(words[0]):
            row = _leading_cells(words[1:])
            names.append(words[0])
            cells.append(row)
            cpus.append(words[1 + len(row)] if len(words) > 1 + len(row) else "")
    if len(set(names)) < len(names):
        raise ParseError.two_machines(f"the row of {Counter(names).most_common(1)[0][0]} stands there twice")
    if len(names) > MAX_ROWS:
        raise ParseError.too_much("rows", len(names), MAX_ROWS)
    table = _completed(SmiTable(tuple(names), tuple(cells), tuple(cpus)), _COLUMN.findall(header))
    _check_whole(table, header, text)
    _check_consistent(table)
    return table


def _words(line: str) -> list[str]:
    return line.lstrip(" \t>").split()


def _leading_cells(words: Sequence[str]) -> tuple[str, ...]:
    row = []
    for word in words:
        if not _CELLS.fullmatch(word):
            break
        row += _CELL.findall(word)
    return tuple(row)


def _completed(table: SmiTable, columns: Sequence[str]) -> SmiTable:
    """Return a table with rows of NICs that were cut off at its end, read from the columns of the other rows.

    The header (``columns``) shows that no row of a GPU is missing. A table that is whole, or lacks more than that, is
    returned unchanged.
    """
    gpus = [name for name in table.names if _GPU.fullmatch(name)]
    width = len(table.cells[0]) if table.cells else 0
    whole = len(table.names)
    if whole > len(gpus) and len(table.cells[-1]) < width:
        whole -= 1
    names, cells = table.names[:whole], table.cells[:whole]
    known = [name for name in columns if _GPU.fullmatch(name)]
    if not known or known != list(names[: len(gpus)]) or not whole < width <= MAX_ROWS:
        return table
    if any(len(row) != width for row in cells):
        return table
    cut = tuple(columns[whole:] if len(columns) == width else (f"column {number}" for number in range(whole, width)))
    for number, name in enumerate(cut, whole):
        relations = (_UNKNOWN if other != name else "X" for other in cut)
        cells = (*cells, (*(row[number] for row in table.cells[:whole]), *relations))
    return SmiTable((*names, *cut), cells, (*table.cpus[:whole], *("" for _ in cut)), cut)


def _check_whole(table: SmiTable, header: str, text: str) -> None:
    """Refuse rows that are missing or short, and name the cell if an unreadable one ends a row."""
    names, cells = table.names, table.cells
    missing = [name for name in re.findall(r"GPU\d{1,4}(?!\d)|NIC\d{1,4}(?!\d)", header) if name not in names]
    short = [name for name, row in zip(names, cells, strict=True) if len(row) < len(names)]
    if (missing or short) and _MIG.search(text):
        raise ParseError(
            f"The table of {TOOL} has rows of MIG instances, which it gives no links. Paste that of the GPUs, with MIG "
            "turned off, or name a known machine."
        )
    for name in (*missing, *short):
        strange = _strange_cell(text, name)
        if strange:
            raise ParseError.unknown_cell(TOOL, f"the row of {name}", strange, _KNOWN)
    if missing:
        raise ParseError.truncated(TOOL, f"its header names {missing[0]}, and there is no row of it")
    for name, row in zip(names, cells, strict=True):
        if len(row) > len(names):
            raise ParseError.truncated(TOOL, f"{name} has {len(row)} relations, and there are {len(names)} rows")
        if len(row) < len(names):
            raise ParseError.truncated(TOOL, f"the row of {name} has {len(row)} of {len(names)} relations")


def _strange_cell(text: str, name: str) -> str:
    """Return the word after the last cell in the row of ``name`` if it looks like a cell, else an empty string."""
    for line in text.splitlines():
        words = _words(line)
        if words[:1] == [name]:
            rest = itertools.dropwhile(_CELLS.fullmatch, words[1:])
            found = next(rest, "")
            if _CELL_LIKE.fullmatch(found):
                return found
    return ""


def _check_consistent(table: SmiTable) -> None:
    names, cells = table.names, table.cells
    for i, name in enumerate(names):
        if cells[i][i] != "X" or cells[i].count("X") != 1:
            raise ParseError.inconsistent(TOOL, f"the row of {name} has its X in another column")
        for j in range(i):
            if cells[i][j] != cells[j][i]:
                problem = f"{names[j]} to {name} is {cells[j][i]}, and back it is {cells[i][j]}"
                raise ParseError.inconsistent(TOOL, problem)


def _add_nvlinks(machine: MachineFacts, table: SmiTable, gpus: dict[str, str]) -> None:
    """Add direct NVLinks, or ports of an NVSwitch if a GPU would need more direct links than any GPU has."""
    links = {a: _nvlinks_of(table, a, gpus) for a in gpus}
    if not any(links.values()):
        machine.notes.append("The table shows no NVLink: PCIe only. `topo -mp` hides NVLinks; `topo -m` shows them.")
        return
    widest = {gpu: max(row.values()) for gpu, row in links.items() if row}
    most, total = max(widest.values()), max(sum(row.values()) for row in links.values())
    if most > _MOST:
        raise ParseError.inconsistent(TOOL, f"NV{most} is more NVLinks than a GPU has ({_MOST})")
    switched = total > _MOST_DIRECT
    kinds = {count for row in links.values() for count in row.values()}
    each = nvlink_guess(most if switched else total, kinds, switched=switched)
    for gpu, row in links.items():
        if switched and row and len(row) < len(widest) - 1:
            raise ParseError.inconsistent(TOOL, f"{gpu} has NVLinks to some GPUs of an NVSwitch and not to others")
        if switched and row:
            machine.add_link(gpus[gpu], SWITCH_NAMES["nvlink"], gb_per_s=widest[gpu] * each, kind="nvlink")
        elif not switched:
            for peer, count in row.items():
                machine.add_link(gpus[gpu], gpus[peer], gb_per_s=count * each, kind="nvlink")
    machine.notes.append(
        f"The table names no GPU model: an NVLink is taken as {each:g} GB/s, the least that fits the number of links"
        f"{', and joins an NVSwitch, for no GPU has that many' if switched else ''}."
    )


def _nvlinks_of(table: SmiTable, gpu: str, gpus: Mapping[str, str]) -> dict[str, int]:
    row = zip(table.names, table.cells[table.names.index(gpu)], strict=True)
    return {peer: int(cell[2:]) for peer, cell in row if peer in gpus and cell.startswith("NV") and int(cell[2:])}


def nvlink_guess(links_of_a_gpu: int, counts: set[int], *, switched: bool) -> float:
    """Return GB/s of one NVLink of a GPU with this many: those of the slowest kind that has as many."""
    if links_of_a_gpu > _MOST_DIRECT:
        return rates.nvlink_gb_per_s(100) / 2  # a GB300 shows 36 and is as wide as a B200 with 18
    if links_of_a_gpu > 12:  # noqa: PLR2004 - an A100 has 12
        return rates.nvlink_gb_per_s(90)
    if links_of_a_gpu == 4 and counts == {4} and not switched:  # noqa: PLR2004 - the bridge of RTX 3090 and A6000
        return rates.NVLINK_GA10X
    if links_of_a_gpu <= 4 and counts == {1}:  # noqa: PLR2004 - a P100 has 4
        return rates.nvlink_gb_per_s(60)
    return rates.nvlink_gb_per_s(70)


def _add_pcie(machine: MachineFacts, table: SmiTable, gpus: dict[str, str]) -> None:
    names, cells = table.names, table.cells
    pairs = [(i, j) for i in range(len(names)) for j in range(i) if cells[i][j] != _UNKNOWN]

    def hidden(i: int, j: int) -> bool:
        return cells[i][j].startswith(("NV", "C2C"))

    sockets = Clusters(len(names))
    sockets.join(pair for pair in pairs if cells[pair[0]][pair[1]] in _ONE_SOCKET)
    sockets.keep_apart(pair for pair in pairs if cells[pair[0]][pair[1]] in _APART)
    sockets.join_where_allowed((i, j) for i, j in pairs if hidden(i, j) and table.cpus[i] == table.cpus[j])
    switches = Clusters(len(names))
    switches.join(pair for pair in pairs if cells[pair[0]][pair[1]] in _ONE_SWITCH)
    switches.keep_apart((i, j) for i, j in pairs if cells[i][j] not in _ONE_SWITCH and not hidden(i, j))
    switches.keep_apart((i, j) for i, j in pairs if not sockets.together(i, j))
    switches.join_where_allowed((i, j) for i, j in pairs if hidden(i, j))
    bridges = Clusters(len(names))
    bridges.join(pair for pair in pairs if cells[pair[0]][pair[1]] == "PIX")
    kinds = [(gpus.get(name, f"nic {name}"), "device" if name in gpus else "nic") for name in names]
    for number, socket in enumerate(sockets.groups()):
        machine.sockets[f"socket {number}"] = rates.BETWEEN_UNKNOWN
        for group in switches.groups(socket):
            _hang(machine, group, bridges, f"socket {number}", kinds)
    machine.notes.append(
        "nvidia-smi shows neither PCIe generations nor which GPUs share a PCIe switch or a link between sockets: PCIe "
        "is taken as gen 3 x16, every group that may share an uplink shares one, and sockets are "
        f"{rates.BETWEEN_UNKNOWN:g} GB/s apart."
    )


def _hang(
    machine: MachineFacts, group: list[int], bridges: Clusters, parent: str, kinds: Sequence[tuple[str, str]]
) -> None:
    """Add a group below its socket, under one switch; members below one bridge get a switch of their own below that."""
    parts = bridges.groups(group)
    outer = _add_switch(machine, group, parent, "pcie switch of " if len(parts) == 1 else "pcie switches above ", kinds)
    for inner in parts:
        above = outer if len(inner) == len(group) else _add_switch(machine, inner, outer, "pcie switch of ", kinds)
        for member in inner:
            name, kind = kinds[member]
            machine.add(name, kind, parent=above, gb_per_s=rates.PCIE_GEN3_X16)


def _add_switch(
    machine: MachineFacts, members: list[int], parent: str, title: str, kinds: Sequence[tuple[str, str]]
) -> str:
    """Add a switch above several members and return the name of their new parent."""
    if len(members) == 1:
        return parent
    name = title + kinds[members[0]][0]
    machine.add(name, "switch", parent=parent, gb_per_s=rates.PCIE_GEN3_X16)
    return name
