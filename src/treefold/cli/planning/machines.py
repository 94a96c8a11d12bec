"""Which machine a command is about: a known one, a file, what comes through a pipe, or this one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from treefold.devices import device_type
from treefold.errors import CommandError
from treefold.errors.words import short
from treefold.topology import Topology, known_topology, with_nvlinks
from treefold.topology.discover import discover_topology
from treefold.topology.load import load_topology

_RANGE = re.compile(r"(\d{1,4})(?:-(\d{1,4}))?")
_NAME = re.compile(r"[\w:.]+")


def only_one(*given: str | None) -> str | None:
    """Return the machine that an argument or an option names; None if none does.

    Raises:
        CommandError: several do.

    """
    named = [name for name in given if name is not None]
    if len(named) > 1:
        raise CommandError(f"{' and '.join(map(short, named))} are each a machine; give one of them.")
    return named[0] if named else None


def read_machine(given: str | None, devices: str | None = None, nvlinks: str | None = None) -> Topology:
    """Return the machine of this name, or this one, with those devices only that ``--devices`` names.

    A word without a slash that is no file is a name, so that a mistyped one is answered with the nearest. ``nvlinks``:
    the known machine whose NVLinks are added, before devices are left out.

    Raises:
        TopologyError: no such name or device, devices that do not reach each other, or NVLinks that do not fit.
        ParseError: no such file, or one that describes no machine.

    """
    if given is None:
        topology = discover_topology()
    elif given == "-" or Path(given).exists() or not _NAME.fullmatch(given) or Path(given).suffix in {".xml", ".json"}:
        topology = load_topology(given)
    else:
        topology = known_topology(given)
    if nvlinks is not None:
        topology = with_nvlinks(topology, nvlinks)
    if devices is None:
        return topology
    return topology.restricted(_named(devices, topology.devices))


def _named(devices: str, known: Sequence[str]) -> list[str]:
    """Return the names that ``0-3,6`` or ``gpu:0,gpu:1`` stand for; numbers are those of the machine's own kind."""
    kind = device_type(known[0])
    found: list[str] = []
    for word in devices.split(","):
        number = _RANGE.fullmatch(word.strip())
        if number:
            first, last = int(number[1]), int(number[2] or number[1])
            if last < first:
                raise CommandError.devices_range(word)
            found += [f"{kind}:{index}" for index in range(first, last + 1)]
        elif ":" in word:
            found.append(word.strip())
        else:
            raise CommandError.devices_range(word)
    return found
