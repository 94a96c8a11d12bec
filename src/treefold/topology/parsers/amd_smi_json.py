"""``amd-smi topology --json``: a list of GPUs, each with its links to all of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from treefold.errors import ParseError
from treefold.topology.graph import Topology
from treefold.topology.parsers.amd_tables import MAX_GPUS, AmdTables, build
from treefold.topology.parsers.plain_json import read_json

TOOL = "amd-smi topology --json"

_START = re.compile(r"\s*\[\s*\{\s*\"(?:gpu|bdf)\"\s*:")
#: The table that each key of a link is a cell of.
_TABLES = {"link_type": "link type", "weight": "weight", "num_hops": "hops", "bandwidth": "numa bw"}


def matches(text: str) -> bool:
    """Tell whether this is the format."""
    return _START.match(text) is not None and '"links"' in text


def parse(text: str) -> Topology:
    """Return the machine of the list.

    Raises:
        ParseError: broken JSON, a GPU without a bus id, links that are missing or of no known type.

    """
    gpus = read_json(text)
    if len(gpus) > MAX_GPUS:
        raise ParseError.too_much("GPUs", len(gpus), MAX_GPUS)
    links = {_bus_id(gpu): _links(gpu) for gpu in gpus}
    names = tuple(links)
    if len(names) < len(gpus):
        raise ParseError.two_machines(f"{TOOL} names a bus id twice")
    for name, others in links.items():
        if not all(other in others and "link_type" in others[other] for other in names):
            raise ParseError.truncated(TOOL, f"{name} has no link_type for each of the {len(names)} GPUs")
    keys = [key for key in _TABLES if all(key in links[a][b] for a in names for b in names)]
    tables = {_TABLES[key]: tuple(tuple(str(links[a][b][key]) for b in names) for a in names) for key in keys}
    return build(AmdTables(TOOL, names, tables))


def _bus_id(item: object) -> str:
    """Return the bus id of a GPU, or of the GPU at the other end of a link."""
    found = item.get("bdf") if isinstance(item, Mapping) else None
    if not isinstance(found, str):
        raise ParseError.bad_field(f"The bdf of a GPU in {TOOL}", found, "a bus id such as 0000:0c:00.0")
    return found


def _links(gpu: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the links of a GPU by the bus id of the GPU at the other end."""
    links = gpu.get("links")
    if not isinstance(links, list):
        raise ParseError.bad_field(f"The links of {_bus_id(gpu)}", links, "a list")
    return {_bus_id(link): link for link in links}
