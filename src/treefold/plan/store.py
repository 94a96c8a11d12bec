"""The symbolic contents of buffers: instead of numbers, which replicas' contributions to which elements they hold."""

from __future__ import annotations

import bisect
import functools
import operator
from dataclasses import dataclass

from treefold.errors import PlanError
from treefold.plan.ir import Buffer, Range

_start = operator.attrgetter("start")

#: Replicas and the association of their fold: 2 is replica 2's own value, ((0, 1), 2) is (r0 + r1) + r2.
Association = int | tuple["Association", ...]


@functools.lru_cache(maxsize=4096)
def replicas_in(value: Association) -> tuple[int, ...]:
    """Return the replicas of an association in the order in which they are folded."""
    if isinstance(value, int):
        return (value,)
    return tuple(replica for part in value for replica in replicas_in(part))


_NOTHING: list[Piece] = []  # shared by all empty buffers; a write replaces it and never changes it


@dataclass(slots=True)
class Piece:
    """Elements ``start`` to ``stop`` of a buffer: those of ``leaf`` from ``offset`` on, in the association ``value``.

    ``final``: the piece is a result, divided by MEAN and rounded, so nothing may be folded into it.
    """

    start: int
    stop: int
    leaf: int
    offset: int
    value: Association
    final: bool
    is_read: bool = False

    def cut(self, start: int, stop: int) -> Piece:
        """Return the part of the piece between the positions ``start`` and ``stop`` of the buffer."""
        start, stop = max(start, self.start), min(stop, self.stop)
        offset = self.offset + start - self.start
        return Piece(start, stop, self.leaf, offset, self.value, self.final, self.is_read)

    def moved(self, shift: int) -> Piece:
        """Return an unread copy of this piece, ``shift`` elements further on."""
        return Piece(self.start + shift, self.stop + shift, self.leaf, self.offset, self.value, self.final)


class Store:
    """The contents of one buffer: disjoint pieces in order of their start. Plans have tens of thousands of buffers."""

    __slots__ = ("buffer", "pieces")

    def __init__(self, buffer: Buffer) -> None:
        """Start empty: nothing can be read before it is written."""
        self.buffer = buffer
        self.pieces: list[Piece] = _NOTHING

    def read(self, wanted: Range, at: int) -> list[Piece]:
        """Return copies of the pieces that make up a range, moved to begin at ``at``, and note that they were read.

        Raises:
            PlanError: part of the range has not been written.

        """
        shift = at - wanted.start
        is_first = bool(self.pieces) and self.pieces[0].start == wanted.start  # as in all scratch
        first = 0 if is_first else self._index(wanted.start)
        if first < len(self.pieces) and self.pieces[first].start == wanted.start:
            piece = self.pieces[first]
            if piece.stop == wanted.stop:  # as nearly all reads are: whole packs, which were written whole
                piece.is_read = True
                return [piece.moved(shift)]
        self._split_at(wanted.start)
        self._split_at(wanted.stop)
        found, position = [], wanted.start
        for piece in self.pieces[self._between(wanted.start, wanted.stop)]:
            if piece.start != position:
                break
            piece.is_read = True
            found.append(piece.moved(shift))
            position = piece.stop
        if position != wanted.stop:
            raise PlanError.read_before_written(self.buffer.name, position, wanted.stop)
        return found

    def write(self, target: Range, pieces: list[Piece]) -> None:
        """Put pieces, whose positions are those of this buffer, into a range.

        Raises:
            PlanError: the range holds something that nobody has read yet.

        """
        if not self.pieces:
            self.pieces = pieces
            return
        if self.pieces[-1].stop <= target.start:
            self.pieces += pieces
            return
        self._split_at(target.start)
        self._split_at(target.stop)
        found = self._between(target.start, target.stop)
        for piece in self.pieces[found]:
            if not piece.is_read:
                raise PlanError.overwritten(self.buffer.name, piece.start, piece.stop)
        self.pieces[found] = pieces

    def first_unread(self) -> Piece | None:
        """Return the first piece that nobody read, if there is one."""
        return next((piece for piece in self.pieces if not piece.is_read), None)

    def _between(self, start: int, stop: int) -> slice:
        """Return the indices of the pieces that begin in a range."""
        return slice(self._index(start), self._index(max(start, stop)))

    def _split_at(self, position: int) -> None:
        index = self._index(position) - 1
        if index >= 0 and self.pieces[index].stop > position:
            piece = self.pieces[index]
            self.pieces.insert(index + 1, piece.cut(position, piece.stop))
            piece.stop = position

    def _index(self, position: int) -> int:
        """Return how many pieces begin before a position, by bisection: a buffer may hold thousands."""
        return bisect.bisect_left(self.pieces, position, key=_start)
