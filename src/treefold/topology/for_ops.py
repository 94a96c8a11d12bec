"""Imported by ops for ``topology=…``, which names a machine: each size of values gets the fastest method there."""

from __future__ import annotations

from pathlib import Path

from treefold.errors import ArgumentError
from treefold.keyed import BoundedCache
from treefold.planners.method import Method
from treefold.topology.graph import Topology
from treefold.topology.known import known_topology
from treefold.topology.load import load_topology
from treefold.topology.planning.compare import LARGEST, SMALLEST, Comparison

#: How many sets of devices of one machine have their methods cached.
_MOST_SETS = 256


def read_topology(value: object) -> Topology:
    """Return the machine that a ``topology=`` argument names: a ``Topology``, a known name, or a file.

    Raises:
        ArgumentError: it is none of these.
        TopologyError: no machine has this name.
        ParseError: the file does not hold a topology.

    """
    if isinstance(value, Topology):
        return value
    if isinstance(value, Path) or (isinstance(value, str) and Path(value).is_file()):
        return load_topology(value)
    if isinstance(value, str):
        return known_topology(value)
    raise ArgumentError.option(topology=value)


class MethodsBySize:
    """The methods of one machine for any subset of its devices, each planned once. Safe to use from many threads.

    ``num_packs``: if it is 1 or more, that many trees of equal share serve every size. Otherwise each size gets the
    fastest method.
    """

    def __init__(self, topology: Topology, num_packs: int | str) -> None:
        """Remember the machine; nothing is planned yet."""
        self._topology = topology
        self._packs = num_packs if isinstance(num_packs, int) and num_packs >= 1 else None
        self._comparisons: BoundedCache[tuple[str, ...], Comparison] = BoundedCache(_MOST_SETS)

    def method(self, devices: tuple[str, ...], nbytes: int) -> Method:
        """Return the method for ``nbytes`` bytes. Sizes are rounded up to 4 KiB times a power of four.

        Raises:
            TopologyError: the machine does not have these devices.
            MissingExtraError: SciPy is not installed.

        """
        comparison = self._comparisons.made(devices, lambda: Comparison(self._topology.restricted(devices)))
        if self._packs is not None:
            return comparison.methods[f"trees#{self._packs}"]
        if len(devices) == 1:
            return comparison.methods["trees"]
        size = SMALLEST
        while size < min(nbytes, LARGEST):
            size *= 4
        return comparison.methods[comparison.best(size)]
