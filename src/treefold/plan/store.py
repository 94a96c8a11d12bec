"""What a buffer holds during a symbolic run: not numbers, but whose contributions to which elements."""

from __future__ import annotations

import bisect
import functools
from dataclasses import dataclass, replace

from treefold.errors import PlanError
from treefold.plan.ir import Buffer, Range

#: Whose contributions, and in which association: 2 is replica 2's own value, ((0, 1), 2) is (r0 + r1) + r2.
Association = int | tuple["Association", ...]


@functools.lru_cache(maxsize=4096)
def replicas_in(value: Association) -> tuple[int, ...]:
    """Return the replicas of an association in the order in which they are folded."""
    if isinstance(value, int):
        return (value,)
    return tuple(replica for part in value for replica in replicas_in(part))


@dataclass(slots=True)
class Piece:
    """Elements ``start`` to ``stop`` of a buffer: elements ``offset`` … of ``leaf``, folded as ``value`` says.

    ``final``: MEAN has divided, the result is rounded; nothing may be folded into it any more.
    """

    start: int
    stop: int
    leaf: int
    offset: int
    value: Association
    final: bool
    is_read: bool = False

    def cut(self, start: int, stop: int) -> Piece:
        """Return the part between ``start`` and ``stop``, positions of the buffer."""
        start, stop = max(start, self.start), min(stop, self.stop)
        return replace(self, start=start, stop=stop, offset=self.offset + start - self.start)

    def moved(self, shift: int) -> Piece:
        """Return an unread copy of this piece, ``shift`` elements further on."""
        return replace(self, start=self.start + shift, stop=self.stop + shift, is_read=False)


class Store:
    """The contents of one buffer: disjoint pieces in order of their start."""

    def __init__(self, buffer: Buffer) -> None:
        """Start empty: nothing can be read before it is written."""
        self.buffer = buffer
        self.pieces: list[Piece] = []

    def read(self, wanted: Range) -> list[Piece]:
        """Return copies of the pieces that make up a range, and note that they were read.

        Raises:
            PlanError: part of the range has not been written.

        """
        self._split_at(wanted.start)
        self._split_at(wanted.stop)
        found, at = [], wanted.start
        for piece in self._between(wanted.start, wanted.stop):
            if piece.start != at:
                break
            piece.is_read = True
            found.append(replace(piece))
            at = piece.stop
        if at != wanted.stop:
            raise PlanError.read_before_written(self.buffer.name, at, wanted.stop)
        return found

    def write(self, target: Range, pieces: list[Piece]) -> None:
        """Put pieces, whose positions are those of this buffer, into a range.

        Raises:
            PlanError: the range holds something that nobody has read yet.

        """
        self._split_at(target.start)
        self._split_at(target.stop)
        old = self._between(target.start, target.stop)
        for piece in old:
            if not piece.is_read:
                raise PlanError.overwritten(self.buffer.name, piece.start, piece.stop)
        first = self._index(target.start)
        self.pieces[first : first + len(old)] = pieces

    def first_unread(self) -> Piece | None:
        """Return the first piece that nobody read, if there is one."""
        return next((piece for piece in self.pieces if not piece.is_read), None)

    def _index(self, position: int) -> int:
        return bisect.bisect_left(self.pieces, position, key=lambda piece: piece.start)

    def _between(self, start: int, stop: int) -> list[Piece]:
        return self.pieces[self._index(start) : self._index(stop)] if start < stop else []

    def _split_at(self, position: int) -> None:
        index = self._index(position) - 1
        if index >= 0 and self.pieces[index].stop > position:
            piece = self.pieces[index]
            self.pieces[index : index + 1] = [piece.cut(piece.start, position), piece.cut(position, piece.stop)]
