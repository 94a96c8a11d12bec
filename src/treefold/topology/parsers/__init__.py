"""Text → ``Topology``: one module per format, each with ``matches(text)`` and ``parse(text)``.

They never read a file and never start a process. A new format is one module and one line in ``_FORMATS``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import ModuleType

from treefold.errors import ParseError
from treefold.topology.graph import Topology
from treefold.topology.parsers import amd_smi, hwloc_xml, nccl_xml, nvidia_smi, plain_json, rocm_smi
from treefold.topology.parsers.markup import root_tag
from treefold.topology.parsers.prefixes import below_prompt, without_prefixes

MAX_CHARACTERS = 4_000_000
_SHOWN = 200  # characters of an unknown text that its error may show

# Tables before JSON: a prompt or a timestamp in brackets, above a table, starts as JSON does.
_FORMATS: tuple[ModuleType, ...] = (nccl_xml, hwloc_xml, rocm_smi, amd_smi, nvidia_smi, plain_json)
# Quantifiers of all parsers are bounded: no text, however hostile, makes an expression backtrack for long.
_ESCAPES = re.compile(
    r"\x1b\][^\x07\x1b\n]{0,4096}(?:\x07|\x1b\\)?|(?:\x1b\[|\x9b)[0-9;:<=>?]{0,64}[ -/]{0,4}[@-~]|\x1b[ -/]{0,4}[0-~]"
)
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f]")


def parse_topology(text: str) -> Topology:
    """Return the machine of a text in any known format.

    Prompts, and what mpirun and log collectors put before every line, do not matter; nor do a terminal's colours.

    Raises:
        ParseError: too long, no known format, or wrong in its own.
        TopologyError: a machine that does not hold together.

    """
    if len(text) > MAX_CHARACTERS:
        raise ParseError.too_much("characters", len(text), MAX_CHARACTERS)
    text = _CONTROLS.sub("", _ESCAPES.sub("", text).replace("\r\n", "\n").replace("\r", "\n")).lstrip("\ufeff")
    if not text.strip():
        raise ParseError.empty()
    for candidate in _readings(text):
        for module in _FORMATS:
            if module.matches(candidate):
                topology: Topology = module.parse(candidate)
                return topology
    raise _refusal(text)


def _readings(text: str) -> Iterator[str]:
    """Yield the text as it is, without what stands before every line, and without the lines above XML or JSON."""
    yield text
    text = without_prefixes(text)
    yield text
    yield below_prompt(text)


def _refusal(text: str) -> ParseError:
    """Return the error of a text that no parser takes; what people mistake for a topology is refused by name."""
    tag = root_tag(text) if text.lstrip().startswith("<") else ""
    if tag == "graphs":
        return ParseError.nccl_graph()
    if tag == "algo":
        return ParseError.msccl()
    if tag:
        return ParseError.unknown_xml(tag)
    if "switchguid=" in text or "caguid=" in text:
        return ParseError.network("This output of ibnetdiscover")
    return ParseError.unrecognised(text.strip()[:_SHOWN])
