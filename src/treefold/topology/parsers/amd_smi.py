"""``amd-smi topology``: tables of access, weight, hops, link type and bandwidth between GPUs."""

from __future__ import annotations

import itertools
import re

from treefold.errors import ParseError
from treefold.topology.graph import Topology
from treefold.topology.parsers.amd_tables import build, read_tables

TOOL = "amd-smi topology"

_TITLE = re.compile(r"^[ \t]*(?:#{1,6}[ \t]+)?(ACCESS|WEIGHT|HOPS|LINK TYPE|NUMA BW) TABLE:", re.MULTILINE)
_CELL = re.compile(r"\d{1,6}|XGMI|PCIE|SELF|UNKNOWN|N/A|-|\d{1,9}-\d{1,9}")
_USED = {"WEIGHT", "HOPS", "LINK TYPE", "NUMA BW"}


def matches(text: str) -> bool:
    """Tell whether this is the format."""
    return _TITLE.search(text) is not None


def parse(text: str) -> Topology:
    """Return the machine of the tables.

    Raises:
        ParseError: tables that are cut off, contradict themselves, or have no link types.

    """
    parts = _TITLE.split(text)
    sections = [
        (title, _table_lines(body)) for title, body in zip(parts[1::2], parts[2::2], strict=True) if title in _USED
    ]
    if not any(title == "LINK TYPE" for title, _ in sections):
        if parts[1] == "ACCESS":
            raise ParseError.peer_access("The ACCESS TABLE of amd-smi")
        raise ParseError.truncated(TOOL, "there is no LINK TYPE TABLE")
    return build(read_tables(TOOL, sections, cell=_CELL))


def _table_lines(body: str) -> list[str]:
    """Return the lines of a table up to the first empty one; Markdown has empty ones between title and table."""
    lines = itertools.dropwhile(lambda line: not line.strip(), body.splitlines()[1:])
    return list(itertools.takewhile(str.strip, lines))
