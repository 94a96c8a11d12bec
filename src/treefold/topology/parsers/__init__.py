"""Text → ``Topology``: one module per format, each with ``matches(text)`` and ``parse(text)``.

They never read a file and never start a process. A new format is one module and one line in ``_FORMATS``.
"""

from __future__ import annotations

import re
from types import ModuleType

from treefold.errors import ParseError
from treefold.topology.graph import Topology
from treefold.topology.parsers import amd_smi, hwloc_xml, nccl_xml, nvidia_smi, plain_json, refused, rocm_smi

MAX_CHARACTERS = 4_000_000

_FORMATS: tuple[ModuleType, ...] = (nccl_xml, hwloc_xml, plain_json, rocm_smi, amd_smi, nvidia_smi)
_ESCAPES = re.compile(r"\x1b\[[0-9;?]{0,16}[ -/]?[@-~]")


def parse_topology(text: str) -> Topology:
    """Return the machine of a text in any known format.

    Raises:
        ParseError: too long, no known format, or wrong in its own.
        TopologyError: a machine that does not hold together.

    """
    if len(text) > MAX_CHARACTERS:
        raise ParseError.too_much("characters", len(text), MAX_CHARACTERS)
    text = _ESCAPES.sub("", text).lstrip("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    if not text.strip():
        raise ParseError.empty()
    for module in _FORMATS:
        if module.matches(text):
            topology: Topology = module.parse(text)
            return topology
    raise refused.reason(text)
