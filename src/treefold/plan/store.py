"""The symbolic contents of buffers: in place of numbers, the replicas that have contributed to each element."""

from __future__ import annotations

import bisect
import functools
import operator
from dataclasses import dataclass

from treefold.errors import PlanError
from treefold.plan.ir import Buffer, Range

start_of = operator.attrgetter("start")

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
    """Elements ``start`` to ``stop`` of a buffer, which hold elements of a leaf.

    Only ``is_read`` changes, and only by the store that holds the piece: what a read returned stays true after later
    splits.

    Args:
        start: Its first position in the buffer.
        stop: The position after its last one.
        leaf: The leaf of its elements.
        offset: The element of the leaf at ``start``.
        value: The contributions in it, and how they are associated.
        final: Whether it is a result, divided by MEAN and rounded, so that nothing may be folded into it.
        is_read: Whether an action has read it.

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
        if start <= self.start and self.stop <= stop:
            return self
        start, stop = max(start, self.start), min(stop, self.stop)
        offset = self.offset + start - self.start
        return Piece(start, stop, self.leaf, offset, self.value, self.final, self.is_read)

    def moved(self, shift: int, *, final: bool = False) -> Piece:
        """Return an unread copy of this piece, ``shift`` elements further on, as a result if ``final``."""
        start, stop = self.start + shift, self.stop + shift
        return Piece(start, stop, self.leaf, self.offset, self.value, self.final or final)


class Store:
    """The contents of one buffer: disjoint pieces in order of their start. Plans have tens of thousands of buffers."""

    __slots__ = ("buffer", "pieces")

    def __init__(self, buffer: Buffer) -> None:
        """Start empty: nothing can be read before it is written."""
        self.buffer = buffer
        self.pieces: list[Piece] = _NOTHING

    def read(self, wanted: Range) -> list[Piece]:
        """Return the pieces that make up a range, and mark them as read.

        Raises:
            PlanError: Part of the range has not been written.

        """
        index = bisect.bisect_right(self.pieces, wanted.start, key=start_of) - 1
        if index >= 0 and wanted.start < wanted.stop <= self.pieces[index].stop:
            piece = self.pieces[index]
            part = piece.cut(wanted.start, wanted.stop)
            # The usual case: a whole piece, or a part of one that is marked as read, as all inputs are. It needs no
            # split, so a leaf of a thousand packs remains one piece per input.
            if part is piece or piece.is_read:
                part.is_read = True
                return [part]
        found, position = self.pieces[self._split_at(wanted.start) : self._split_at(wanted.stop)], wanted.start
        for piece in found:
            if piece.start != position:
                break
            piece.is_read = True
            position = piece.stop
        if position != wanted.stop:
            raise PlanError(
                f"elements {position}:{wanted.stop} of {self.buffer.name} are read before they are written."
            )
        return found

    def write(self, target: Range, pieces: list[Piece]) -> None:
        """Put pieces into a range; their positions are already those of this buffer.

        Raises:
            PlanError: The range holds something that no action has read yet.

        """
        if not self.pieces:
            self.pieces = pieces
            return
        if self.pieces[-1].stop <= target.start:
            self.pieces += pieces
            return
        found = slice(self._split_at(target.start), self._split_at(target.stop))
        for piece in self.pieces[found]:
            if not piece.is_read:
                raise PlanError(
                    f"elements {piece.start}:{piece.stop} of {self.buffer.name} are overwritten before they are read."
                )
        self.pieces[found] = pieces

    def first_unread(self) -> Piece | None:
        """Return the first piece that no action has read, or None."""
        return next((piece for piece in self.pieces if not piece.is_read), None)

    def _split_at(self, position: int) -> int:
        """Cut the piece across a position in two, and return the index of the first piece that begins there or later.

        The search is a bisection, because a buffer may hold thousands of pieces.
        """
        index = bisect.bisect_left(self.pieces, position, key=start_of)
        if index and self.pieces[index - 1].stop > position:
            piece = self.pieces[index - 1]
            self.pieces[index - 1 : index] = piece.cut(piece.start, position), piece.cut(position, piece.stop)
        return index
