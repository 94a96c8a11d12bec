"""Streams of bytes that ranks put pieces of memory into and take pieces out of: gathers, scatters, exchanges."""

from __future__ import annotations

import ctypes
import hashlib
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from treefold.errors import MismatchError
from treefold.errors.words import counted
from treefold.group.protocol import CallKind, call_key
from treefold.group.transport.link import Link, Piece


class Stream(NamedTuple):
    """A stream of ``nbytes``, the same on all ranks, and what this rank gives to it and takes from it.

    A piece is an offset in the stream, an address of this process, and a number of bytes.
    """

    nbytes: int
    sources: Sequence[Piece]
    targets: Sequence[Piece]


def move(link: Link, stream: Stream, collective: str, layout: str, *, root: int | None = None) -> None:
    """Move the pieces of all ranks through the memory that they share.

    A stream that does not fit there goes through it in parts: after an error some of them have been written.
    ``layout``: in words, everything beside ``collective`` and ``root`` in which ranks must agree.
    """
    description = f"{collective}{'' if root is None else f' with root {root}'} of {layout}"
    digest = hashlib.blake2b(f"{collective} {layout}".encode(), digest_size=16).digest()
    kind = call_key(CallKind.STREAM, root=root, digest=digest)
    whole, nbytes = stream.sources, max(stream.nbytes, 1)
    kept: list[object] = []  # memory of copies, until they have been read
    if nbytes > link.result_bytes:
        whole = [_apart(piece, stream.targets, kept) for piece in stream.sources]
    for begin in link.parts(range(0, nbytes, link.result_bytes)):
        end = min(begin + link.result_bytes, nbytes)
        sources, targets = list(_within(whole, begin, end)), list(_within(stream.targets, begin, end))
        link.place(kind, end - begin, sources, targets, description=description[:400])


def tell_counts(link: Link, sent: Sequence[int], expected: Sequence[int], layout: str) -> list[tuple[int, ...]]:
    """Return how many elements each rank sends to each: ``counts[sender][receiver]``.

    Raises:
        MismatchError: a rank sends more or less than the other expects, on all ranks alike.

    """
    digest = hashlib.blake2b(layout.encode(), digest_size=16).digest()
    own = struct.pack(f"<{2 * link.size}Q", *sent, *expected)
    said = link.agree(call_key(CallKind.COUNTS, digest=digest), own, description=f"all_to_all of {layout}")
    counts = [struct.unpack(f"<{2 * link.size}Q", blob) for blob in said]
    for sender, row in enumerate(counts):
        for receiver in range(link.size):
            if row[receiver] != counts[receiver][link.size + sender]:
                raise MismatchError(
                    f"Rank {sender} sends {counted(row[receiver], 'element')} to rank {receiver}, which expects "
                    f"{counts[receiver][link.size + sender]}. Split sizes must agree, so nothing was moved, on no rank."
                ).alike()
    return [row[: link.size] for row in counts]


def _apart(source: Piece, targets: Sequence[Piece], kept: list[object]) -> Piece:
    """Return a piece, or a copy of it if a part that is taken earlier would overwrite one that is given later."""
    if not any(overwrites(other, source) for other in targets):
        return source
    at, address, nbytes = source
    copy = (ctypes.c_char * nbytes)()
    ctypes.memmove(copy, address, nbytes)
    kept.append(copy)
    return at, ctypes.addressof(copy), nbytes


def overwrites(target: Piece, source: Piece) -> bool:
    """Tell whether writing one piece changes the other: they share memory, and not the same bytes of the stream.

    In place, such as a rank's own part of what it gathers, the same bytes are written where they are.
    """
    (at, address, nbytes), (other_at, other_address, other_nbytes) = target, source
    is_in_place = address - at == other_address - other_at
    return not is_in_place and address < other_address + other_nbytes and other_address < address + nbytes


def _within(pieces: Sequence[Piece], begin: int, end: int) -> Iterator[Piece]:
    """Return what of the pieces lies in a part of the stream, whose begin counts as 0."""
    for at, address, nbytes in pieces:
        low, high = max(at, begin), min(at + nbytes, end)
        if low < high:
            yield low - begin, address + low - at, high - low
