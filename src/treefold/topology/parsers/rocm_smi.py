"""``rocm-smi --showtopo``: weights, hops and link types of GPU pairs, and their NUMA nodes."""

from __future__ import annotations

import dataclasses
import re

from treefold.errors import ParseError
from treefold.topology.graph import Topology
from treefold.topology.parsers.amd_tables import build, read_tables

TOOL = "rocm-smi --showtopo"

# As the tool prints them, or as people put them above Markdown's tables.
_TITLE = re.compile(
    r"^[ \t]*(?:=+[ \t]*([A-Z][^=\n]{0,80}?)[ \t]{0,80}=+"
    r"|(?:#{1,6}[ \t]+)?([A-Z][A-Za-z ]{0,60} between two GPUs):?)[ \t]*$",
    re.MULTILINE,
)
_CELL = re.compile(r"\d{1,6}|X|XGMI|PCIE|UNKNOWN|True|False|N/A|\d{1,9}-\d{1,9}")
_NUMA = re.compile(r"GPU ?\[?(\d{1,4})\]?\s*:\s*\(Topology\) Numa Node:\s*(\d{1,4})")
_BETWEEN = "between two gpus"


def matches(text: str) -> bool:
    """Tell whether this is the format."""
    return any(_BETWEEN in (printed or other).lower() for printed, other in _TITLE.findall(text))


def parse(text: str) -> Topology:
    """Return the machine of the tables; the narrowest if several fit.

    Raises:
        ParseError: tables that are cut off, contradict themselves, or have no link types.

    """
    parts = _TITLE.split(text)
    sections = [
        (title.lower().partition(f" {_BETWEEN}")[0], _table_lines(body))
        for printed, other, body in zip(parts[1::3], parts[2::3], parts[3::3], strict=True)
        if _BETWEEN in (title := printed or other).lower()
    ]
    tables = read_tables(TOOL, sections, cell=_CELL)
    if not tables.titled("link type"):
        raise ParseError.truncated(TOOL, "there is no table of link types")
    numa = {int(gpu): int(node) for gpu, node in _NUMA.findall(text) if int(gpu) < len(tables.names)}
    return build(dataclasses.replace(tables, numa=numa))


def _table_lines(body: str) -> list[str]:
    return [line for line in body.splitlines() if line.lstrip().startswith("GPU") and ":" not in line]
