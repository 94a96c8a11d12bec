"""The last writer and the readers of each part of a buffer, from which the dependencies of operations follow."""

from __future__ import annotations

import bisect
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from treefold.plan.ir import Range

_start_of = operator.attrgetter("start")


@dataclass(slots=True)
class _Accessed:
    """Elements from ``start`` up to the next part: the last writer (-1: none) and the readers since then."""

    start: int
    writer: int = -1
    readers: set[int] = field(default_factory=set)


class Accesses:
    """The accesses to one buffer, noted in an order in which one thread could run the operations.

    >>> accesses = Accesses()
    >>> accesses.write(0, 10, by=0), accesses.read(4, 6, by=1), accesses.write(5, 8, by=2)
    (set(), {0}, {0, 1})
    """

    def __init__(self) -> None:
        """Start with a buffer that no operation has accessed."""
        self._parts = [_Accessed(0)]

    def read(self, start: int, stop: int, by: int) -> set[int]:
        """Note a read, and return the writers that must be done before it (read after write)."""
        parts = self._parts[self._between(start, stop)]
        for part in parts:
            part.readers.add(by)
        # Readers do not wait for each other.
        return {part.writer for part in parts if part.writer >= 0}

    def write(self, start: int, stop: int, by: int) -> set[int]:
        """Note a write, and return the writers and readers that must be done before it.

        Earlier readers count as well: the write reuses memory that they still need.
        """
        written = self._between(start, stop)
        parts = self._parts[written]
        found = {part.writer for part in parts if part.writer >= 0}.union(*(part.readers for part in parts))
        # One part replaces all: later operations wait for this write, which has waited for the others.
        self._parts[written] = [_Accessed(start, by)]
        return found - {by}

    def _between(self, start: int, stop: int) -> slice:
        """Split the parts that reach across ``start`` or ``stop``, and return the slice of the parts between."""
        self._split_at(start)
        self._split_at(stop)
        return slice(*(bisect.bisect_left(self._parts, at, key=_start_of) for at in (start, stop)))

    def _split_at(self, position: int) -> None:
        # The first part begins at 0, so there always is one at or before the position.
        index = bisect.bisect_right(self._parts, position, key=_start_of) - 1
        part = self._parts[index]
        if part.start != position:
            # The readers are copied: from now on each half has its own.
            self._parts.insert(index + 1, _Accessed(position, part.writer, set(part.readers)))


def dependencies(operations: Iterable[tuple[Sequence[Range], Range | None]], num_buffers: int) -> list[set[int]]:
    """Return, for each operation, the earlier ones that must be done before it may start.

    Args:
        operations: The ranges that each reads, and the one that it writes, in an order in which one thread could run
            them.
        num_buffers: The number of buffers.

    """
    accesses = [Accesses() for _ in range(num_buffers)]
    needs = []
    for position, (sources, target) in enumerate(operations):
        found: set[int] = set()
        for source in sources:
            found |= accesses[source.buffer].read(source.start, source.stop, position)
        # Only the halves of staging buffers are written more than once; such a write waits for the readers.
        if target is not None:
            found |= accesses[target.buffer].write(target.start, target.stop, position)
        # A fold into one of its own sources reads before it writes, and does not wait for itself.
        needs.append(found - {position})
    return needs
