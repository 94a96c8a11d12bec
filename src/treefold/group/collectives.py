"""What a group moves without arithmetic: broadcasts, gathers, scatters, exchanges, streams of bytes; barriers."""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import json
import math
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from treefold.backends import ArrayBackend, HostArray
from treefold.backends.tracing import Like
from treefold.calls.entry import Entry, Part, as_distributed, component, read_entry
from treefold.calls.leaves import read_copied_leaf, read_gathered_leaf
from treefold.calls.reader import read_components
from treefold.errors import ArgumentError, MismatchError
from treefold.errors.words import counted, short
from treefold.execution import native
from treefold.group.contributions import (
    address_of,
    check_movable,
    hand_over,
    host_arrays,
    layout_of,
    memory_of,
    read_joining_takers,
    read_takers,
)
from treefold.group.protocol import CallKind, call_key
from treefold.group.traced_calls import TracedCalls, call_later, check_untraced, tracing_backend
from treefold.group.transport.link import Link, Piece
from treefold.group.transport.messages import Pieces
from treefold.values import DistributedValues, PerReplica

_DEVICE = "cpu:0"
_LINE = 64


class Moved(NamedTuple):
    """An array that moves: where its result begins in the area that the ranks share, its dtype and shape."""

    backend: ArrayBackend
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    at: int

    @property
    def nbytes(self) -> int:
        """Bytes of the result."""
        return self.dtype.itemsize * math.prod(self.shape)


class Joined(NamedTuple):
    """All ranks' arrays of each leaf behind each other, and how many replicas they come from."""

    arrays: list[HostArray]
    replicas: list[int]


#: Lays the ranks' arrays behind each other: an entry, a description, axis, root. None off the root.
Join = Callable[[Entry, str, int, int | None], Joined | None]


class Collectives(TracedCalls):
    """The calls of one group that only move values."""

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        self._link.agree(call_key(CallKind.BARRIER), b"", description="barrier")

    def broadcast(self, value: Any, root: int, out: Any = None) -> Any:
        """Return rank ``root``'s value on all ranks."""
        backend = tracing_backend(value)
        if backend is not None:
            check_untraced("broadcast with out=", out)
            return call_later(
                backend, value, lambda given: self._when_run(self.broadcast, given, root), lambda array, _: Like(array)
            )
        local = PerReplica([value])
        entry = read_entry(local, read_components(local.values), _DEVICE, read_copied_leaf)
        check_movable(entry)
        given = [host_arrays(part)[0] for part in entry.parts]
        moved = _laid_out(entry.parts, [array.shape for array in given])
        takers = None if out is None else read_takers(out, entry)
        kind = call_key(CallKind.BROADCAST, root=root, digest=layout_of(entry))
        pieces = list(zip(moved, given, strict=True)) if self._link.rank == root else []
        made = self._place(kind, moved, pieces, f"broadcast from rank {root} of {_leaves(moved)}", takers=takers)
        if takers is not None:
            return component(entry, takers)
        pairs = zip(moved, made or [], strict=True)
        return component(entry, [one.backend.from_hosts([array], [_DEVICE])[0] for one, array in pairs])

    def gather(self, value: Any, axis: int, root: int | None, destinations: str = "", out: Any = None) -> Any:
        """Return all ranks' arrays behind each other along ``axis``; None off the ``root``, if there is one.

        ``destinations``: those that name ranks, in which all ranks must agree. ``out``: takes the result, and is left
        alone off the root.
        """
        if isinstance(axis, bool) or not isinstance(axis, int):
            raise ArgumentError.gather_axis(axis, "")
        is_wanted = root is None or root == self._link.rank
        backend = tracing_backend(value)
        if backend is not None:
            check_untraced("gather with out=", out)
            return call_later(
                backend,
                value,
                lambda given: self._when_run(self.gather, given, axis, root, destinations),
                lambda array, _: Like(array, axis=axis),
                is_wanted=is_wanted,
            )
        local = value if isinstance(value, DistributedValues) else PerReplica([value])
        read = as_distributed(local, "value")
        entry = read_entry(
            read, read_components(read.values), _DEVICE, lambda path, leaves: read_gathered_leaf(path, leaves, axis)
        )
        description = (
            f"all_gather{f' to {destinations}' * bool(destinations)}" if root is None else f"gather to rank {root}"
        )
        leaves = counted(len(entry.parts), "leaf", "leaves")
        takers = read_joining_takers(out, entry, axis) if is_wanted and out is not None else None
        joined = self.join(entry, f"{description} along axis {axis} of {leaves}", axis, root, destinations, takers)
        if joined is None:
            return None
        if takers is not None:
            return component(entry, takers)
        made = joined.arrays
        turned = [np.ascontiguousarray(np.moveaxis(array, 0, axis)) if axis else array for array in made]
        backends = [part.operand.backend for part in entry.parts]
        return component(
            entry, [one.from_hosts([array], [_DEVICE])[0] for one, array in zip(backends, turned, strict=True)]
        )

    def join(
        self,
        entry: Entry,
        description: str,
        axis: int = 0,
        root: int | None = None,
        destinations: str = "",
        takers: Sequence[Any] | None = None,
    ) -> Joined | None:
        """Return all ranks' arrays of each leaf behind each other along their first axis; None off the ``root``.

        ``takers``: arrays that take the results, with ``axis`` where it belongs.

        Raises:
            MismatchError: other axes or dtypes differ, or lengths of takers, on all ranks.

        """
        check_movable(entry)
        given = [host_arrays(part) for part in entry.parts]
        pairs = zip(entry.parts, given, strict=True)
        backends = [part.operand.backend for part in entry.parts]
        room = (
            []
            if takers is None
            else [one.shape_dtype(taker)[0][axis] for one, taker in zip(backends, takers, strict=True)]
        )
        own = [
            [part.dtype, [list(array.shape) for array in arrays], room[index] if room else None]
            for index, (part, arrays) in enumerate(pairs)
        ]
        digest = layout_of(entry, destinations, with_shapes=False)
        shapes_key, key = (
            call_key(kind, how=(axis & 255, 0), root=root, digest=digest) for kind in (CallKind.SHAPES, CallKind.GATHER)
        )
        blob = json.dumps(own).encode()
        said = [json.loads(blob) for blob in self._link.agree(shapes_key, blob, description=description)]
        parts = enumerate(entry.parts)
        shapes = [_joined(part.path, [rank[index] for rank in said], axis) for index, part in parts]
        moved = _laid_out(entry.parts, shapes)
        pieces = []
        for index, (result, arrays) in enumerate(zip(moved, given, strict=True)):
            before = sum(math.prod(shape) for rank in said[: self._link.rank] for shape in rank[index][1])
            for array in arrays:
                pieces.append((result._replace(at=result.at + before * result.dtype.itemsize), array))
                before += array.size
        is_wanted = root is None or root == self._link.rank
        made = self._place(key, moved, pieces, description, is_wanted=is_wanted, axis=axis, takers=takers)
        counts = [sum(len(rank[index][1]) for rank in said) for index in range(len(moved))]
        return None if made is None else Joined(made, counts)

    def _place(
        self,
        kind: bytes,
        moved: Sequence[Moved],
        given: Sequence[tuple[Moved, HostArray]],
        description: str,
        *,
        is_wanted: bool = True,
        axis: int = 0,
        takers: Sequence[Any] | None = None,
    ) -> list[HostArray] | None:
        """Lay what this rank gives into the area that the ranks share, and return what lies there in the end.

        ``takers``: arrays that take it, whose axis ``axis`` is the first there.
        """
        if takers is not None:
            return self._take(kind, moved, given, description, axis, takers)
        pieces = Pieces((place.at, array) for place, array in given)
        keeps = is_wanted and axis == 0 and all(result.backend.takes_read_only for result in moved)
        made = [] if keeps or not is_wanted else [native.new_result(one.shape, one.dtype) for one in moved]
        targets = [
            (one.at, address_of(array), one.nbytes) for one, array in zip(moved, made, strict=False) if one.nbytes
        ]
        outcome = self._link.place(kind, _total(moved), pieces, targets, description=description, wants_lease=keeps)
        if not is_wanted:
            return None
        if not keeps:
            return made
        views = [outcome.view(one.at, one.shape, one.dtype) for one in moved]
        return views if outcome.is_leased else [array.copy() for array in views]

    def _take(
        self,
        kind: bytes,
        moved: Sequence[Moved],
        given: Sequence[tuple[Moved, HostArray]],
        description: str,
        axis: int,
        takers: Sequence[Any],
    ) -> list[HostArray]:
        """Lay what this rank gives into the area, and let arrays take what lies there; return it, too."""
        pairs = list(zip(moved, takers, strict=True))
        # Any other axis has to be turned on the way.
        memory = [memory_of(one.backend, taker, one.dtype) if axis == 0 else None for one, taker in pairs]
        made = [
            native.new_result(one.shape, one.dtype) if own is None else own
            for one, own in zip(moved, memory, strict=True)
        ]
        targets = [
            (one.at, address_of(array), one.nbytes) for one, array in zip(moved, made, strict=True) if one.nbytes
        ]
        pieces = Pieces((place.at, array) for place, array in given)
        self._link.place(kind, _total(moved), pieces, targets, description=description)
        for (one, taker), array, own in zip(pairs, made, memory, strict=True):
            turned = np.ascontiguousarray(np.moveaxis(array, 0, axis)) if axis else array
            hand_over(one.backend, taker, turned, own)
        return made


def _total(moved: Sequence[Moved]) -> int:
    return moved[-1].at + max(moved[-1].nbytes, 1) if moved else 1


def _laid_out(parts: Sequence[Part], shapes: Sequence[Sequence[int]]) -> list[Moved]:
    """Return results behind each other, each at a cache line of its own."""
    moved, at = [], 0
    for part, shape in zip(parts, shapes, strict=True):
        one = Moved(part.operand.backend, np.dtype(part.dtype), tuple(shape), at)
        moved.append(one)
        at += (one.nbytes + _LINE - 1) // _LINE * _LINE
    return moved


def _joined(path: str, said: Sequence[tuple[str, list[list[int]], int | None]], axis: int) -> tuple[int, ...]:
    """Return the shape of gathered arrays, whose axis is the first.

    ``said``: of each rank, the dtype and the shapes of its arrays, and the length of the one that takes the result.

    Raises:
        MismatchError: they differ elsewhere, on all ranks alike.

    """
    where = f" at {path}" if path else ""
    dtype, shapes, _ = said[0]
    for rank, (other, others, _) in enumerate(said):
        for shape in others:
            if other != dtype or shape[1:] != shapes[0][1:]:
                raise MismatchError.gather_ranks(
                    rank, where, f"{other} {tuple(shape)}", f"{dtype} {tuple(shapes[0])}", axis
                ).alike()
    length = sum(shape[0] for _, others, _ in said for shape in others)
    for rank, (*_, room) in enumerate(said):
        if room not in {None, length}:
            raise MismatchError.room(rank, where, room, length, axis).alike()
    return (length, *shapes[0][1:])


def _leaves(moved: Sequence[Moved]) -> str:
    return ", ".join(f"{one.dtype.name} {one.shape}" for one in moved)[:300] or "nothing"


class Brought(NamedTuple):
    """What this rank brings: arrays with the axis first, and the arrays of ``out``, if there are any."""

    entry: Entry
    arrays: list[HostArray]
    takers: list[Any] | None
    axis: int

    def room(self, index: int) -> int | None:
        """Return the length of the array that takes the result of a leaf, along the axis; None if there is none."""
        if self.takers is None:
            return None
        length: int = self.entry.parts[index].operand.backend.shape_dtype(self.takers[index])[0][self.axis]
        return length


class Told(NamedTuple):
    """What a rank says of a leaf: its shape with the axis first, how it is cut, and the room for the result."""

    shape: list[int]
    lengths: list[int]
    room: int | None


class Share(NamedTuple):
    """What moves of one leaf, as rows of a stream: all of them, those that this rank gets, and those that it gives.

    ``length`` and ``begin``: of what this rank gets. ``given``: where in the stream some of its rows begin, the first
    of them in its array, and how many.
    """

    row_bytes: int
    num_rows: int
    length: int
    begin: int
    given: list[tuple[int, int, int]]


class Exchanges:
    """The scatters and exchanges of one group."""

    def __init__(self, link: Link) -> None:
        """Use a link."""
        self._link = link

    def scatter(self, value: Any, root: int, axis: int, out: Any) -> Any:
        """Return this rank's part of the root's value."""
        brought = _read("scatter", value, axis, out)
        said = self._tell("scatter", brought, [[] for _ in brought.arrays], root)
        shares = [
            self._scattered(part, [rank[index] for rank in said], root, axis)
            for index, part in enumerate(brought.entry.parts)
        ]
        return self._move("scatter", brought, shares, root)

    def all_to_all(self, value: Any, axis: int, lengths: Sequence[int] | None, out: Any) -> Any:
        """Return the parts that all ranks have for this one, behind each other."""
        brought = _read("all_to_all", value, axis, out)
        cuts = [_cut("all_to_all", array.shape, axis, lengths, self._link.size) for array in brought.arrays]
        said = self._tell("all_to_all", brought, cuts, None)
        shares = [
            self._exchanged(part, [rank[index] for rank in said], axis)
            for index, part in enumerate(brought.entry.parts)
        ]
        return self._move("all_to_all", brought, shares, None)

    def _tell(
        self, collective: str, brought: Brought, cuts: Sequence[Sequence[int]], root: int | None
    ) -> list[list[Told]]:
        """Return what each rank says of each leaf."""
        layout = f"{collective} {layout_of(brought.entry, with_shapes=False).hex()}"
        digest = hashlib.blake2b(layout.encode(), digest_size=16).digest()
        key = call_key(CallKind.COUNTS, how=(brought.axis & 255, 0), root=root, digest=digest)
        parts = enumerate(zip(brought.arrays, cuts, strict=True))
        own = [(array.shape, [*cut], brought.room(index)) for index, (array, cut) in parts]
        blobs = self._link.agree(key, json.dumps(own).encode(), description=f"{collective} along axis {brought.axis}")
        return [[Told(*leaf) for leaf in json.loads(blob)] for blob in blobs]

    def _scattered(self, part: Part, said: Sequence[Told], root: int, axis: int) -> Share:
        whole, own, where = said[root], self._link.rank, f" at {part.path}" * bool(part.path)
        lengths = [one.shape[0] for one in said]
        for rank, one in enumerate(said):
            if one.shape[1:] != whole.shape[1:]:
                got, expected = (f"{part.dtype} {tuple(each.shape)}" for each in (one, whole))
                raise MismatchError(
                    f"Rank {rank} expects {got}{where} and the root scatters {expected}, both with axis {axis} in "
                    "front. All other lengths must be the same. Nothing was done."
                ).alike()
        others = sum(lengths) - lengths[root]
        if others > whole.shape[0]:
            raise MismatchError(
                f"The other ranks expect parts{where} of {others} in all along axis {axis}, and the root's value has "
                f"{whole.shape[0]} there. Nothing was done."
            ).alike()
        lengths[root] = whole.shape[0] - others
        _check_room(said, lengths, where, axis)
        starts = [0, *itertools.accumulate(lengths)]
        given = [(0, 0, whole.shape[0])] if own == root else []
        return Share(_row_bytes(part, whole), whole.shape[0], lengths[own], starts[own], given)

    def _exchanged(self, part: Part, said: Sequence[Told], axis: int) -> Share:
        first, own, where = said[0], self._link.rank, f" at {part.path}" * bool(part.path)
        for rank, one in enumerate(said):
            if one.shape[1:] != first.shape[1:]:
                got, expected = (f"{part.dtype} {tuple(each.shape)}" for each in (one, first))
                raise MismatchError.gather_ranks(rank, where, got, expected, axis, verb="exchanges").alike()
        totals = [sum(one.lengths[rank] for one in said) for rank in range(len(said))]
        _check_room(said, totals, where, axis)
        starts, rows = [0, *itertools.accumulate(totals)], [0, *itertools.accumulate(said[own].lengths)]
        before = [starts[rank] + sum(one.lengths[rank] for one in said[:own]) for rank in range(len(said))]
        given = list(zip(before, rows, said[own].lengths, strict=False))
        return Share(_row_bytes(part, first), starts[-1], totals[own], starts[own], given)

    def _move(self, collective: str, brought: Brought, shares: Sequence[Share], root: int | None) -> Any:
        """Move all leaves as one stream, and return the result."""
        entry, sources, targets, at = brought.entry, list[Piece](), list[Piece](), 0
        made, memory = list[HostArray](), list[HostArray | None]()
        for index, (array, share) in enumerate(zip(brought.arrays, shares, strict=True)):
            size = share.row_bytes
            for begin, row, count in share.given:
                sources.append((at + begin * size, address_of(array) + row * size, count * size))
            backend, taker = entry.parts[index].operand.backend, brought.takers and brought.takers[index]
            own = memory_of(backend, taker, array.dtype) if taker is not None and not brought.axis else None
            memory.append(own)
            made.append(native.new_result((share.length, *array.shape[1:]), array.dtype) if own is None else own)
            targets.append((at + share.begin * size, address_of(made[-1]), share.length * size))
            at += share.num_rows * size
        stream = Stream(at, [one for one in sources if one[2]], [one for one in targets if one[2]])
        layout = f"{layout_of(entry, with_shapes=False).hex()[:8]} along axis {brought.axis}, {at} bytes"
        move(self._link, stream, collective, layout, root=root)
        backends = [part.operand.backend for part in entry.parts]
        turned = [np.ascontiguousarray(np.moveaxis(one, 0, brought.axis)) if brought.axis else one for one in made]
        if brought.takers is None:
            pairs = zip(backends, turned, strict=True)
            return component(entry, [backend.from_hosts([array], [_DEVICE])[0] for backend, array in pairs])
        for backend, taker, array, own in zip(backends, brought.takers, turned, memory, strict=True):
            hand_over(backend, taker, array, own)
        return component(entry, brought.takers)


def _read(collective: str, value: Any, axis: int, out: Any) -> Brought:
    """Read what this rank brings.

    Raises:
        TreefoldError: one of its kinds.

    """
    if isinstance(axis, bool) or not isinstance(axis, int):
        raise ArgumentError.gather_axis(axis, "")
    if tracing_backend(value) is not None:
        raise ArgumentError.traced(collective)
    local = PerReplica([value])
    entry = read_entry(
        local, read_components(local.values), _DEVICE, lambda path, leaves: read_gathered_leaf(path, leaves, axis)
    )
    check_movable(entry)
    takers = None if out is None else read_joining_takers(out, entry, axis)
    return Brought(entry, [host_arrays(part)[0] for part in entry.parts], takers, axis)


def _cut(collective: str, shape: Sequence[int], axis: int, lengths: Any, count: int) -> list[int]:
    """Return the length of each rank's part of an array, whose axis is the first.

    Raises:
        ArgumentError: there is no such cut.

    """
    if lengths is None:
        if shape[0] % count:
            raise ArgumentError.unequal_parts(tuple(shape), axis, count, collective)
        return [shape[0] // count] * count
    given: list[Any] = [*lengths] if isinstance(lengths, Sequence) else [None]
    if len(given) != count or not all(type(one) is int and one >= 0 for one in given) or sum(given) != shape[0]:
        raise ArgumentError(
            f"{collective} got lengths={short(lengths)}. It takes {count} whole numbers, 0 or more, one for each rank, "
            f"whose sum is the length of the axis, {shape[0]} here."
        )
    return given


def _check_room(said: Sequence[Told], lengths: Sequence[int], where: str, axis: int) -> None:
    for rank, (one, length) in enumerate(zip(said, lengths, strict=True)):
        if one.room not in {None, length}:
            raise MismatchError.room(rank, where, one.room or 0, length, axis).alike()


def _row_bytes(part: Part, leaf: Told) -> int:
    return np.dtype(part.dtype).itemsize * math.prod(leaf.shape[1:])


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
