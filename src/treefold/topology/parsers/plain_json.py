"""JSON: the plain form that ``Topology.to_json`` writes, and square matrices."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from treefold.errors import ParseError
from treefold.errors.words import printable
from treefold.topology.gpus import LINK_NOUNS, MissingLinks
from treefold.topology.graph import MOST_GB_PER_S, Topology, TopologyBuilder, is_finite, is_number

TOOL = "the plain JSON form"
MAX_NODES, MAX_LINKS = 8192, 200_000
_KEYS = {"name", "devices", "switches", "hosts", "nics", "links", "notes", "missing"}
_LINK_KEYS = {"between", "gb_per_s", "alpha_us", "kind"}
_START = re.compile(r"""\s*(?:\{\s*(?:["'}]|\Z)|\[\s*(?:[\[{"\]]|\Z))""")
_MOST_ALPHA_US = 1e9
MAX_DEVICES = 256
_SMALL = 32  # Whole numbers up to this may be counts or weights.
_OWN_MEMORY = 4.0  # If the diagonal is larger than the rest by this factor, it is each device's own memory.
Matrix = list[list[float]]


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
    return _machine_of_matrix(data)


def read_json(text: str) -> Any:
    """Return the value of a JSON text.

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
    """Return the two directions of a number or a pair of numbers; null is a missing direction."""
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


def _machine_of_matrix(data: object) -> Topology:
    """Return the machine of parsed JSON that is a matrix or holds one.

    Raises:
        ParseError: JSON of another kind, a matrix that is not square, numbers without a unit, peer access.

    """
    if isinstance(data, list) and data and all(isinstance(row, list) for row in data):
        return _bare(_checked("the matrix", data))
    if isinstance(data, dict):
        if "gb_per_s" in data:
            return _direct(_checked("gb_per_s", data["gb_per_s"]), 1.0, "gb_per_s of each pair")
        if "links" in data and "gb_per_s_per_link" in data:
            each = data["gb_per_s_per_link"]
            if not is_number(each):
                raise ParseError.bad_field("gb_per_s_per_link", each, "a number")
            return _direct(_checked("links", data["links"]), each, "links of each pair")
        for key in ("m", "matrix"):
            if key in data:
                return _bare(_checked(key, data[key]))
        _refuse(data)
    if isinstance(data, list) and data and isinstance(data[0], dict) and "links" in data[0]:
        raise ParseError.network("This graph of a network")
    raise ParseError.unknown_json(list(data) if isinstance(data, dict) else [type(data).__name__])


def _refuse(data: dict[str, Any]) -> None:
    """Refuse known files that do not describe a machine, by name."""
    holders = [name for name, value in data.items() if isinstance(value, dict) and "m" in value]
    if holders and len(holders) == len(data):
        raise ParseError.several(holders)
    if "gpus_per_node" in data and "node_betas_list" in data:
        raise ParseError(
            "This is a TACCL profile: latency and bandwidth per class of link, and no links. Give a topology; "
            "calibration takes measured figures."
        )


def _bare(matrix: Matrix) -> Topology:
    """Return the machine of a matrix without a unit, if its numbers can be nothing but GB/s."""
    count = len(matrix)
    values = [matrix[i][j] for i in range(count) for j in range(count) if i != j]
    diagonal = [matrix[i][i] for i in range(count)]
    if all(value in {0, 1} for value in values):
        raise ParseError.peer_access("A matrix of zeros and ones")
    if all(float(value).is_integer() and value <= _SMALL for value in values):
        raise ParseError(
            'The matrix holds small whole numbers: link counts, weights or GB/s? Say which: {"gb_per_s": matrix} or '
            '{"links": matrix, "gb_per_s_per_link": 25}.'
        )
    if min(values) > 0 and min(diagonal) > _OWN_MEMORY * max(values):
        return _measured(matrix)
    return _direct(matrix, 1.0, "GB/s of each pair")


def _direct(matrix: Matrix, each: float, what: str) -> Topology:
    builder = TopologyBuilder()
    count = len(matrix)
    for number in range(count):
        builder.device(f"gpu:{number}")
    for i in range(count):
        for j in range(count):
            if i != j and matrix[i][j]:
                builder.link(f"gpu:{i}", f"gpu:{j}", gb_per_s=matrix[i][j] * each, one_way=True)
    builder.note(f"The matrix is read as {what}: every pair has links of its own, and what pairs share is not shown.")
    return builder.build()


def _measured(matrix: Matrix) -> Topology:
    """Return the narrowest machine of bandwidths that were measured one pair at a time."""
    builder = TopologyBuilder()
    others = [[value for j, value in enumerate(row) if j != i] for i, row in enumerate(matrix)]
    columns = [[matrix[i][j] for i in range(len(matrix)) if i != j] for j in range(len(matrix))]
    for number in range(len(matrix)):
        builder.device(f"gpu:{number}")
    builder.switch("shared")
    for number, (row, column) in enumerate(zip(others, columns, strict=True)):
        builder.link(f"gpu:{number}", "shared", gb_per_s=max(row), back_gb_per_s=max(column))
    builder.note(
        "The diagonal is each device's own memory, so the matrix was measured one pair at a time and does not show "
        "what pairs share: every device is taken to have one port, as wide as its best pair."
    )
    return builder.build()


def _checked(what: str, value: object) -> Matrix:
    """Return a square matrix of numbers from 0 up."""
    if not isinstance(value, list) or not value or not all(isinstance(row, list) for row in value):
        raise ParseError.bad_field(what, value, "a square matrix: a list of lists of numbers")
    count = len(value)
    if count > MAX_DEVICES:
        raise ParseError.too_much("rows", count, MAX_DEVICES)
    for number, row in enumerate(value):
        if len(row) != count:
            raise ParseError.bad_field(f"The length of row {number} of {what}", len(row), f"{count}, as many as rows")
        for item in row:
            if not is_number(item) or not 0 <= item <= MOST_GB_PER_S:
                raise ParseError.bad_field(f"A number in row {number} of {what}", item, "GB/s or a count, 0 to 1e9")
    if count == 1:
        raise ParseError.bad_field(f"The size of {what}", count, "2 or more")
    return [list(row) for row in value]
