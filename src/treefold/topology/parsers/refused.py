"""Text that people mistake for a topology, each kind refused by name."""

from __future__ import annotations

from treefold.errors import ParseError
from treefold.topology.parsers.markup import root_tag

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
    return ParseError.unrecognised(text.strip()[:_BEFORE_GPU])
