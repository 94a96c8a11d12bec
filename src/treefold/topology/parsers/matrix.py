"""Square matrices: GB/s per direction between devices, or links per pair with what one carries."""

from __future__ import annotations

from typing import Any

from treefold.errors import ParseError
from treefold.topology.graph import MOST_GB_PER_S, Topology, TopologyBuilder

MAX_DEVICES = 256
_SMALL = 32  # whole numbers up to this may be counts or weights
_OWN_MEMORY = 4.0  # a diagonal so many times the rest is each device's own memory

Matrix = list[list[float]]


def machine_of(data: object) -> Topology:
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
    """Refuse what is known and no machine, by name."""
    holders = [name for name, value in data.items() if isinstance(value, dict) and "m" in value]
    if holders and len(holders) == len(data):
        raise ParseError.several(holders)
    if "gpus_per_node" in data and "node_betas_list" in data:
        raise ParseError(
            "This is a TACCL profile: latency and bandwidth per class of link, and no links. Give a topology; "
            "calibration takes measured figures."
        )


def _bare(matrix: Matrix) -> Topology:
    """Return the machine of a matrix without a unit, if its numbers can only be GB/s."""
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


def is_number(value: object) -> bool:
    """Tell whether this is a number, and no bool."""
    return isinstance(value, int | float) and not isinstance(value, bool)
