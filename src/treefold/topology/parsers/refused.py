"""Text that people mistake for a topology, each kind refused by name."""

from __future__ import annotations

import re

from treefold.errors import ParseError
from treefold.topology.parsers.markup import root_tag

_PEER_TABLE = re.compile(r"^\s*GPU\d+\s+(?:X\s+)?(?:OK|CNS|GNS|TNS|NS|DR|U)\b", re.MULTILINE)
_BEFORE_GPU = 200  # characters of a start that the sentence may show


def reason(text: str) -> ParseError:
    """Return why this text, which no parser takes, is no topology."""
    tag = root_tag(text) if text.lstrip().startswith("<") else ""
    if tag == "graphs":
        return ParseError.nccl_graph()
    if tag == "algo":
        return ParseError.msccl()
    if tag:
        return ParseError.unknown_xml(tag)
    if "switchguid=" in text or "caguid=" in text:
        return ParseError.network("This output of ibnetdiscover")
    if _PEER_TABLE.search(text):
        return ParseError.peer_access("This table")
    return ParseError.unrecognised(text.strip()[:_BEFORE_GPU])
