"""JSON: the plain form that ``Topology.to_json`` writes, and square matrices."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from treefold.errors import ParseError
from treefold.errors.words import printable
from treefold.topology.gpus import LINK_NOUNS, MissingLinks
from treefold.topology.graph import MOST_GB_PER_S, Topology, TopologyBuilder, is_finite
from treefold.topology.parsers import matrix
from treefold.topology.parsers.matrix import is_number

TOOL = "the plain JSON form"
MAX_NODES, MAX_LINKS = 8192, 200_000
_KEYS = {"name", "devices", "switches", "hosts", "nics", "links", "notes", "missing"}
_LINK_KEYS = {"between", "gb_per_s", "alpha_us", "kind"}
_START = re.compile(r"""\s*(?:\{\s*(?:["'}]|\Z)|\[\s*(?:[\[{"\]]|\Z))""")
_MOST_ALPHA_US = 1e9


def matches(text: str) -> bool:
    """Tell whether this is the format, and not a shell's prompt, a timestamp or a rank in brackets."""
    return _START.match(text) is not None


def parse(text: str) -> Topology:
    """Return the machine.

    Raises:
        ParseError: broken JSON, an unknown key, a number out of all bounds, JSON of another kind.

    """
    data = read_json(text)
    if isinstance(data, dict) and "devices" in data:
        return _machine(data)
    return matrix.machine_of(data)


def read_json(text: str) -> Any:
    """Return what a text of JSON holds.

    Raises:
        ParseError: broken JSON, or two of them.

    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        if error.msg == "Extra data" and matches(text[error.pos :]):
            raise ParseError.two_machines("another JSON begins behind the first") from None
        raise ParseError.broken("JSON", str(error)) from None
    except (ValueError, RecursionError) as error:
        raise ParseError.broken("JSON", str(error) or "it is too deep") from None


def _machine(data: dict[str, Any]) -> Topology:
    unknown = sorted(set(data) - _KEYS)
    if unknown:
        raise ParseError.bad_field("A key of the JSON", unknown[0], f"one of {', '.join(sorted(_KEYS))}")
    builder = TopologyBuilder(_text("name", data.get("name", "")))
    groups = (("devices", builder.device), ("hosts", builder.host), ("switches", builder.switch), ("nics", builder.nic))
    count = sum(len(_list(key, data.get(key, []))) for key, _ in groups)
    links = _list("links", data.get("links", []))
    if count > MAX_NODES:
        raise ParseError.too_much("nodes", count, MAX_NODES)
    if len(links) > MAX_LINKS:
        raise ParseError.too_much("links", len(links), MAX_LINKS)
    for key, add in groups:
        for name in data.get(key, []):
            add(_text(f"A name in {key}", name))
    for number, link in enumerate(links):
        _add_link(builder, f"links[{number}]", link)
    for sentence in _list("notes", data.get("notes", [])):
        builder.note(_text("A note", sentence))
    return builder.missing(_missing(data.get("missing"))).build()


def _missing(value: object) -> MissingLinks | None:
    if value is None:
        return None
    if not isinstance(value, Mapping) or set(value) - {"links", "gpus"} or value.get("links") not in list(LINK_NOUNS):
        raise ParseError.bad_field("missing", value, 'an object such as {"links": "nvlink", "gpus": ["H100 SXM"]}')
    names = (_text("A name in gpus of missing", name) for name in _list("gpus of missing", value.get("gpus", [])))
    return MissingLinks(value["links"], tuple(map(printable, names)))


def _add_link(builder: TopologyBuilder, where: str, link: object) -> None:
    if not isinstance(link, Mapping):
        raise ParseError.bad_field(where, link, 'an object such as {"between": ["gpu:0", "gpu:1"], "gb_per_s": 25.0}')
    unknown = sorted(set(link) - _LINK_KEYS)
    if unknown:
        raise ParseError.bad_field(f"A key of {where}", unknown[0], f"one of {', '.join(sorted(_LINK_KEYS))}")
    between = link.get("between")
    if not isinstance(between, list) or len(between) != 2:  # noqa: PLR2004 - a link has two ends
        raise ParseError.bad_field(f"between of {where}", between, "a pair of names")
    a, b = (_text(f"between of {where}", name) for name in between)
    there, back = _pair(f"gb_per_s of {where}", link.get("gb_per_s"), MOST_GB_PER_S)
    alpha, alpha_back = _pair(f"alpha_us of {where}", link.get("alpha_us", 0.0), _MOST_ALPHA_US)
    kind = _text(f"kind of {where}", link.get("kind", ""))
    for ends, gb_per_s, alpha_us in (((a, b), there, alpha), ((b, a), back, alpha_back)):
        if gb_per_s is not None:
            builder.link(*ends, gb_per_s=gb_per_s, alpha_us=alpha_us or 0.0, kind=kind, one_way=True)
    if there is None and back is None:
        raise ParseError.bad_field(f"gb_per_s of {where}", None, "a number, or a pair of which one may be null")


def _pair(where: str, value: object, most: float) -> tuple[float | None, float | None]:
    """Return the two directions of a number or a pair of numbers; null is a direction that is not there."""
    pair: list[Any] = value if isinstance(value, list) else [value, value]
    if len(pair) != 2 or not all(item is None or is_number(item) for item in pair):  # noqa: PLR2004 - two directions
        raise ParseError.bad_field(where, value, "a number, or a pair [to, back]")
    for item in pair:
        # What is not finite is left to TopologyBuilder.
        if item is not None and abs(item) > most and not (isinstance(item, float) and not is_finite(item)):
            raise ParseError.bad_field(where, item, f"a number up to {most:g}")
    return pair[0], pair[1]


def _text(where: str, value: object) -> str:
    if not isinstance(value, str):
        raise ParseError.bad_field(where, value, "a string")
    return value


def _list(where: str, value: object) -> list[Any]:
    if not isinstance(value, list):
        raise ParseError.bad_field(where, value, "a list")
    return value
