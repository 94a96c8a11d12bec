"""Reads a topology from a file, the standard input or a text, and recognises its format by the content."""

from __future__ import annotations

import codecs
import dataclasses
import os
import sys
from pathlib import Path
from typing import BinaryIO

from treefold.errors import ParseError
from treefold.errors.words import short
from treefold.topology.graph import Topology

_LONGEST_PATH = 4096
_BYTE_ORDER_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))


def load_topology(path_or_text: str | os.PathLike[str]) -> Topology:
    """Return the machine that a file or a text describes.

    The format is recognised by the content: NCCL and RCCL topology XML, ``nvidia-smi topo -m``, ``rocm-smi
    --showtopo``, ``amd-smi topology``, hwloc XML, a matrix of bandwidths as JSON, and the plain JSON form::

        {"devices": ["gpu:0", "gpu:1"], "switches": ["sw0"],
         "links": [{"between": ["gpu:0", "sw0"], "gb_per_s": 25.0, "alpha_us": 1.0},
                   {"between": ["gpu:1", "sw0"], "gb_per_s": [25.0, 12.5]}]}

    Here ``gb_per_s`` is 10⁹ bytes per second and direction, or a pair ``[to, back]`` if the directions differ. Links
    between the same ends add up. If a format leaves something open, the narrowest machine that fits is returned, with a
    sentence in ``Topology.notes``.

    Args:
        path_or_text: the text, or the path of a file; ``"-"`` is the standard input. A string is text if it has a line
            break, or starts with ``<``, ``{``, ``[`` or ``"``. At most 4,000,000 characters are read.

    Raises:
        ParseError: no such file, no known format, or a text that is cut off or contradicts itself.
        TopologyError: a machine that does not hold together.

    >>> load_topology('{"gb_per_s": [[0, 25], [25, 0]]}').devices
    ('gpu:0', 'gpu:1')
    """
    # Callers that name a known machine import this module, too, and do not pay for the parsers.
    from treefold.topology.parsers import parse_topology  # noqa: PLC0415 - as above

    if isinstance(path_or_text, str):
        if _is_text(path_or_text):
            return parse_topology(path_or_text)
        if path_or_text == "-":
            return parse_topology(_read_text(sys.stdin.buffer))
    elif not isinstance(path_or_text, os.PathLike):
        raise ParseError.not_text(path_or_text)
    path = os.fspath(path_or_text)
    if not isinstance(path, str):  # os.PathLike may give bytes
        raise ParseError.not_text(path_or_text)
    topology = parse_topology(_read_file(path))
    return topology if topology.name else dataclasses.replace(topology, name=Path(path).stem)


def _is_text(text: str) -> bool:
    return "\n" in text or "\r" in text or text.lstrip("\ufeff \t")[:1] in {"<", "{", "[", '"'} or not text.strip()


def _read_file(path: str) -> str:
    if len(path) > _LONGEST_PATH or "\0" in path:
        raise ParseError.no_file(path)
    try:
        with open(path, "rb") as stream:  # noqa: PTH123 - a path of any type; Path would only wrap it
            return _read_text(stream)
    except (FileNotFoundError, UnicodeEncodeError):  # the latter: characters that no file's name has
        raise ParseError.no_file(path) from None
    except OSError as error:
        raise ParseError(
            f"{short(path)} cannot be read: {error.strerror or str(error)}. Give the path of a file of text."
        ) from None


def _read_text(stream: BinaryIO) -> str:
    """Return the text of a stream in UTF-8, or in UTF-16, which PowerShell writes into a file."""
    from treefold.topology.parsers import MAX_CHARACTERS  # noqa: PLC0415 - as above

    data = stream.read(4 * MAX_CHARACTERS + 1)  # One byte more than ``MAX_CHARACTERS`` characters have in UTF-8.
    for mark, encoding in _BYTE_ORDER_MARKS:
        if data.startswith(mark):
            return data[len(mark) :].decode(encoding, errors="replace")
    return data.decode("utf-8", errors="replace")
