"""Collectives without arithmetic: broadcasts, gathers, scatters, exchanges, streams of bytes; barriers.

Where lengths may differ, ranks announce theirs first. Then all leaves move as one stream: a sequence of pieces of
memory, of which every rank sends some and receives some.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from treefold.backends import HostArray
from treefold.backends.tracing import Like
from treefold.calls.entry import Entry, LeafReader, Part, at, component, read_entry
from treefold.calls.leaves import read_copied_leaf, read_gathered_leaf
from treefold.calls.reader import read_components
from treefold.errors import ArgumentError, MismatchError
from treefold.errors.words import counted, short
from treefold.execution import native
from treefold.group.contributions import (
    check_movable,
    hand_over,
    host_arrays,
    layout_of,
    memory_of,
    read_joining_outs,
    read_outs,
)
from treefold.group.protocol import MOST_DESCRIBED, CallKind, call_key
from treefold.group.traced_calls import TracedCalls, call_later, check_untraced, tracing_backend
from treefold.group.transport.link import ByteStream, GroupLink, Piece
from treefold.group.transport.messages import KeptPieces
from treefold.observing import OBSERVER, observed
from treefold.values import DistributedValues, PerReplica

if TYPE_CHECKING:
    from treefold.group.transport.link import Outcome

_DEVICE = "cpu:0"
_LINE = 64


class Contribution(NamedTuple):
    """The contribution of this rank to a call.

    Attributes:
        entry: The value, as it was read.
        arrays: The arrays of each leaf, one for each replica, with the axis first.
        outs: The array that takes each leaf's result; None without ``out``.
        memory: The memory of each out array if results can be written there as they are, else None.
        axis: The axis to cut or to concatenate along; None if arrays move whole.
        digest: The hash of everything in which ranks must agree.

    """

    entry: Entry
    arrays: list[list[HostArray]]
    outs: list[Any] | None
    memory: list[HostArray | None]
    axis: int | None
    digest: bytes


class Announcement(NamedTuple):
    """The announcement of one rank about a leaf.

    Attributes:
        shapes: The shapes of its arrays, with the axis first.
        cut: The length of its part for each rank; empty if it cuts nothing.
        room: The length of its out array along the axis; None without one.

    """

    shapes: list[list[int]]
    cut: Sequence[int]
    room: int | None


class LeafPieces(NamedTuple):
    """The pieces of one leaf that move.

    Attributes:
        sizes: The bytes of each piece, in the order of the stream.
        given: The pieces that this rank sends: their numbers and arrays.
        taken: The number of the first piece that this rank receives, and the shape of its result, with the axis first.

    """

    sizes: Sequence[int]
    given: Sequence[tuple[int, HostArray]]
    taken: tuple[int, tuple[int, ...]]


class Joined(NamedTuple):
    """All ranks' arrays of each leaf, concatenated, and the number of replicas that they come from."""

    arrays: list[HostArray]
    replicas: list[int]


class Collectives(TracedCalls):
    """The calls of one group that only move values."""

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        agree = observed(self._link.agree, "barrier") if OBSERVER.is_on else self._link.agree
        agree(call_key(CallKind.BARRIER), b"", description="barrier")

    def broadcast(self, value: Any, root: int, out: Any = None) -> Any:
        """Return rank ``root``'s value on all ranks."""
        backend = tracing_backend(value)
        if backend is not None:
            check_untraced("broadcast with out=", out)
            return call_later(
                backend, value, lambda given: self._when_run(self.broadcast, given, root), lambda array, _: Like(array)
            )
        own, is_root = _read("broadcast", PerReplica([value]), None, out), self._link.rank == root
        shares = [LeafPieces([one.nbytes], [(0, one)] * is_root, (0, one.shape)) for [one] in own.arrays]
        key = call_key(CallKind.BROADCAST, root=root, digest=own.digest)
        pairs = zip(own.entry.parts, own.arrays, strict=True)
        leaves = ", ".join([f"{part.dtype} {one.shape}" for part, [one] in pairs])
        description = f"broadcast from rank {root} of {leaves[:300] or 'nothing'}"
        return _wrapped(own, self._place(own, shares, key, description))

    def gather(self, value: Any, axis: int, root: int | None, destinations: str = "", out: Any = None) -> Any:
        """Return all ranks' arrays, concatenated along ``axis``; None on ranks other than ``root``, if there is one.

        Args:
            value: An array, a pytree of arrays, or distributed values.
            axis: The axis to concatenate along.
            root: The only rank that gets the result; None: all do.
            destinations: The destinations that name ranks, in words. All ranks must agree in them.
            out: Arrays that take the result; ranks that get none ignore it.

        """
        _check_axis(axis)
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
        own = _read(f"gather {destinations}", local, axis, out if is_wanted else None)
        name = f"gather to rank {root}"
        if root is None:
            name = f"all_gather{f' to {destinations}' * bool(destinations)}"
        leaves = counted(len(own.entry.parts), "leaf", "leaves")
        joined = self._join(own, f"{name} along axis {axis} of {leaves}", root)
        return None if joined is None else _wrapped(own, joined.arrays)

    def join(self, entry: Entry, description: str, root: int | None) -> Joined | None:
        """Return all ranks' arrays of each leaf, concatenated along the first axis; None on ranks other than ``root``.

        Raises:
            MismatchError: other axes differ, on all ranks.

        """
        check_movable(entry)
        arrays, digest = [*map(host_arrays, entry.parts)], layout_of(entry, "join", with_shapes=False)
        return self._join(Contribution(entry, arrays, None, [None] * len(arrays), 0, digest), description, root)

    def scatter(self, value: Any, root: int, axis: int, out: Any) -> Any:
        """Return this rank's part of the root's value."""
        own = _read_untraced("scatter", value, axis, out)
        announced = self._announce(own, [()] * len(own.arrays), root, f"scatter along axis {axis}")
        pairs = zip(own.entry.parts, own.arrays, announced, strict=True)
        shares = [self._scattered(part, array, said, root, axis) for part, [array], said in pairs]
        return self._stream("scatter", own, shares, root)

    def all_to_all(self, value: Any, axis: int, lengths: Sequence[int] | None, out: Any) -> Any:
        """Return the parts that all ranks send to this one, concatenated along ``axis``."""
        own = _read_untraced("all_to_all", value, axis, out)
        cuts = [_cut("all_to_all", array.shape, axis, lengths, self._link.size) for [array] in own.arrays]
        announced = self._announce(own, cuts, None, f"all_to_all along axis {axis}")
        pairs = zip(own.entry.parts, own.arrays, announced, strict=True)
        shares = [self._exchanged(part, array, said, axis) for part, [array], said in pairs]
        return self._stream("all_to_all", own, shares, None)

    def _join(self, own: Contribution, description: str, root: int | None) -> Joined | None:
        axis, rank, parts = own.axis or 0, self._link.rank, own.entry.parts
        announced = self._announce(own, [()] * len(parts), root, description)
        shares, replicas = [], []
        for part, arrays, said in zip(parts, own.arrays, announced, strict=True):
            shapes = [shape for one in said for shape in one.shapes]
            length = sum(shape[0] for shape in shapes)
            _check_shapes(part, said, axis, "gathers")
            _check_rooms(part, said, [length] * len(said), axis)
            given = enumerate(arrays, sum(len(one.shapes) for one in said[:rank]))
            sizes = [math.prod(shape) * arrays[0].itemsize for shape in shapes]
            shares.append(LeafPieces(sizes, [*given], (0, (length, *shapes[0][1:]))))
            replicas.append(len(shapes))
        key = call_key(CallKind.GATHER, how=(axis & 255, 0), root=root, digest=own.digest)
        is_wanted = root in {None, rank}
        made = self._place(own, shares, key, description, is_wanted=is_wanted)
        return Joined(made, replicas) if is_wanted else None

    def _announce(
        self, own: Contribution, cuts: Sequence[Sequence[int]], root: int | None, description: str
    ) -> list[list[Announcement]]:
        """Return what each rank announces, leaf by leaf."""
        axis, parts = own.axis or 0, own.entry.parts
        key = call_key(CallKind.ANNOUNCED, how=(axis & 255, 0), root=root, digest=own.digest)
        rooms: list[int | None] = [None] * len(parts)
        if own.outs is not None:
            pairs = zip(parts, own.outs, strict=True)
            rooms = [part.operand.backend.shape_dtype(out)[0][axis] for part, out in pairs]
        leaves = zip(own.arrays, cuts, rooms, strict=True)
        brought = [([array.shape for array in arrays], cut, room) for arrays, cut, room in leaves]
        everyone = self._link.announce(key, brought, description=description)
        return [[Announcement(*one) for one in said] for said in zip(*everyone, strict=True)]

    def _scattered(
        self, part: Part, array: HostArray, said: Sequence[Announcement], root: int, axis: int
    ) -> LeafPieces:
        own, where, [whole] = self._link.rank, at(part.path), said[root].shapes
        lengths = [one.shapes[0][0] for one in said]
        for rank, one in enumerate(said):
            if one.shapes[0][1:] != whole[1:]:
                got, expected = (f"{part.dtype} {tuple(shape)}" for shape in (one.shapes[0], whole))
                raise MismatchError(
                    f"Rank {rank} expects {got}{where} and the root scatters {expected}, both with axis {axis} in "
                    "front. All other lengths must be the same. Nothing was done."
                ).alike()
        others = sum(lengths) - lengths[root]
        if others > whole[0]:
            raise MismatchError(
                f"The other ranks expect parts{where} of {others} in all along axis {axis}, and the root's value has "
                f"{whole[0]} there. Nothing was done."
            ).alike()
        lengths[root] = whole[0] - others
        _check_rooms(part, said, lengths, axis)
        given = enumerate(_parts(array, lengths)) if own == root else ()
        return LeafPieces(_nbytes(array, lengths), [*given], (own, (lengths[own], *array.shape[1:])))

    def _exchanged(self, part: Part, array: HostArray, said: Sequence[Announcement], axis: int) -> LeafPieces:
        own, size = self._link.rank, len(said)
        _check_shapes(part, said, axis, "exchanges")
        totals = [sum(one.cut[rank] for one in said) for rank in range(size)]
        _check_rooms(part, said, totals, axis)
        given = zip(range(own, size * size, size), _parts(array, said[own].cut), strict=True)
        sizes = _nbytes(array, by_receiver([one.cut for one in said]))
        return LeafPieces(sizes, [*given], (own * size, (totals[own], *array.shape[1:])))

    def _place(
        self, own: Contribution, shares: Sequence[LeafPieces], key: bytes, description: str, *, is_wanted: bool = True
    ) -> list[HostArray]:
        """Move all leaves at once; return this rank's results, in new arrays or in the memory that the ranks share."""
        is_kept = is_wanted and own.outs is None and not own.axis
        keeps = is_kept and all(part.operand.backend.takes_read_only for part in own.entry.parts)
        stream, begins, results = _laid_out(own, shares, makes=is_wanted and not keeps)
        outcome = _placing(self._link, stream, description)(key, stream, description=description, wants_lease=keeps)
        if not keeps:
            return results
        leaves = zip(begins, shares, own.arrays, strict=True)
        views = [outcome.view(begin, share.taken[1], arrays[0].dtype) for begin, share, arrays in leaves]
        return views if outcome.is_leased else [view.copy() for view in views]

    def _stream(self, collective: str, own: Contribution, shares: Sequence[LeafPieces], root: int | None) -> Any:
        """Move all leaves as one stream, in parts if it is long, and return the result."""
        stream, _, results = _laid_out(own, shares, makes=True)
        layout = f"{own.digest.hex()[:8]} along axis {own.axis}, {stream.nbytes} bytes"
        move(self._link, stream, collective, layout, root=root)
        return _wrapped(own, results)


def move(link: GroupLink, stream: ByteStream, collective: str, layout: str, *, root: int | None = None) -> None:
    """Move the pieces of all ranks through the memory that they share.

    A stream that does not fit there moves in several parts. After an error some of them have been written.

    Args:
        link: This rank's end of the group.
        stream: The pieces that this rank sends and receives.
        collective: The name of the call.
        layout: Everything else in which ranks must agree, in words.
        root: The rank that all ranks name as root; None if the call has none.

    """
    description = f"{collective}{'' if root is None else f' with root {root}'} of {layout}"
    digest = hashlib.blake2b(f"{collective} {layout}".encode(), digest_size=16).digest()
    kind = call_key(CallKind.STREAM, root=root, digest=digest)
    nbytes, sources, step = stream.nbytes, stream.sources, link.result_bytes
    kept: list[object] = []  # memory of copies, until they have been read
    if nbytes > step:
        sources = [_apart(piece, stream.targets, kept) for piece in sources]
    for begin in link.parts(range(0, nbytes, step)):
        end = min(begin + step, nbytes)
        pieces = ([*_within(some, begin, end)] for some in (sources, stream.targets))
        part = stream if nbytes <= step else ByteStream(end - begin, *pieces)
        _placing(link, part, description)(kind, part, description=description[:MOST_DESCRIBED])


def _placing(link: GroupLink, stream: ByteStream, description: str) -> Callable[..., Outcome]:
    """Return the link's ``place``, observed if calls are."""
    return observed(link.place, f"{description}, {stream.nbytes} bytes") if OBSERVER.is_on else link.place


def by_receiver(sent: Sequence[Sequence[int]]) -> list[int]:
    """Return the lengths ``sent[sender][receiver]`` in the order of an exchange: by receiver, then by sender."""
    return [lengths[receiver] for receiver in range(len(sent)) for lengths in sent]


def announce_counts(link: GroupLink, sent: Sequence[int], expected: Sequence[int], layout: str) -> list[list[int]]:
    """Return how many elements each rank sends to each: ``counts[sender][receiver]``.

    Raises:
        MismatchError: a rank sends more or less than the other expects, on all ranks alike.

    """
    key = call_key(CallKind.ANNOUNCED, digest=hashlib.blake2b(layout.encode(), digest_size=16).digest())
    said = link.announce(key, [sent, expected], description=f"all_to_all of {layout}")
    for sender, (counts, _) in enumerate(said):
        for receiver, count in enumerate(counts):
            if count != said[receiver][1][sender]:
                raise MismatchError(
                    f"Rank {sender} sends {counted(count, 'element')} to rank {receiver}, which expects "
                    f"{said[receiver][1][sender]}. Split sizes must agree, so nothing was moved, on no rank."
                ).alike()
    return [counts for counts, _ in said]


def _read(collective: str, value: DistributedValues, axis: int | None, out: Any) -> Contribution:
    read_leaf: LeafReader = read_copied_leaf if axis is None else functools.partial(read_gathered_leaf, axis=axis)
    entry = read_entry(value, read_components(value.values), _DEVICE, read_leaf)
    check_movable(entry)
    outs = None
    if out is not None:
        outs = read_outs(out, entry) if axis is None else read_joining_outs(out, entry, axis)
    arrays = [host_arrays(part) for part in entry.parts]
    memory: list[HostArray | None] = [None] * len(arrays)
    if outs is not None and not axis:  # along any other axis, results have to be turned first
        triples = zip(entry.parts, outs, arrays, strict=True)
        memory = [memory_of(part.operand.backend, out, one.dtype) for part, out, [one, *_] in triples]
    digest = layout_of(entry, collective, with_shapes=axis is None)
    return Contribution(entry, arrays, outs, memory, axis, digest)


def _read_untraced(collective: str, value: Any, axis: int, out: Any) -> Contribution:
    _check_axis(axis)
    if tracing_backend(value) is not None:
        raise ArgumentError.traced(collective)
    return _read(collective, PerReplica([value]), axis, out)


def _laid_out(
    own: Contribution, shares: Sequence[LeafPieces], *, makes: bool
) -> tuple[ByteStream, list[int], list[HostArray]]:
    """Return leaves as one stream, each at a cache line of its own.

    Args:
        own: The contribution of this rank.
        shares: The pieces of each leaf.
        makes: Whether to allocate the results, too. They are targets of the stream then.

    Returns:
        The stream, the offset in it at which each result of this rank begins, and the results if ``makes``.

    """
    sources: list[tuple[int, HostArray]] = []
    begins: list[int] = []
    results: list[HostArray] = []
    end = 0
    for index, (share, arrays) in enumerate(zip(shares, own.arrays, strict=True)):
        starts = [*itertools.accumulate(share.sizes, initial=-(-end // _LINE) * _LINE)]
        end, (first, shape) = starts[-1], share.taken
        sources += [(starts[number], array) for number, array in share.given]
        begins.append(starts[first])
        if makes:
            memory = own.memory[index]
            results.append(native.new_result(shape, arrays[0].dtype) if memory is None else memory)
    targets = KeptPieces(zip(begins, results, strict=True)) if makes else []
    return ByteStream(max(end, 1), KeptPieces(sources), targets), begins, results


def _wrapped(own: Contribution, results: Sequence[HostArray]) -> Any:
    """Return results in the structure of the value, with the axis where it belongs: new arrays, or those of ``out``."""
    axis, backends = own.axis, [part.operand.backend for part in own.entry.parts]
    turned = [np.ascontiguousarray(np.moveaxis(one, 0, axis)) if axis else one for one in results]
    if own.outs is None:
        pairs = zip(backends, turned, strict=True)
        return component(own.entry, [backend.from_hosts([array], [_DEVICE])[0] for backend, array in pairs])
    for backend, out, array, memory in zip(backends, own.outs, turned, own.memory, strict=True):
        hand_over(backend, out, array, memory)
    return component(own.entry, own.outs)


def _parts(array: HostArray, lengths: Sequence[int]) -> list[HostArray]:
    """Return parts of an array, cut along its first axis."""
    starts = itertools.accumulate(lengths, initial=0)
    return [array[start : start + length] for start, length in zip(starts, lengths, strict=False)]


def _nbytes(like: HostArray, lengths: Sequence[int]) -> list[int]:
    """Return the bytes of parts of an array, given the length of each along the first axis."""
    return [like.itemsize * math.prod(like.shape[1:]) * length for length in lengths]


def _check_axis(axis: object) -> None:
    if isinstance(axis, bool) or not isinstance(axis, int):
        raise ArgumentError.gather_axis(axis, "")


def _check_shapes(part: Part, said: Sequence[Announcement], axis: int, verb: str) -> None:
    """Refuse arrays that differ in more than their lengths along the axis, on all ranks alike."""
    first = said[0].shapes[0]
    for rank, one in enumerate(said):
        for shape in one.shapes:
            if shape[1:] != first[1:]:
                got, expected = (f"{part.dtype} {tuple(each)}" for each in (shape, first))
                raise MismatchError(
                    f"Rank {rank} {verb} {got}{at(part.path)} and rank 0 {expected}, both with axis {axis} in front. "
                    "Dtypes and all other lengths must be the same. Nothing was done."
                ).alike()


def _check_rooms(part: Part, said: Sequence[Announcement], lengths: Sequence[int], axis: int) -> None:
    """Refuse out arrays that are not as long as the results of their ranks, on all ranks alike."""
    for rank, (one, length) in enumerate(zip(said, lengths, strict=True)):
        if one.room not in {None, length}:
            raise MismatchError.room(rank, at(part.path), one.room or 0, length, axis).alike()


def _cut(collective: str, shape: Sequence[int], axis: int, lengths: Any, count: int) -> list[int]:
    """Return the length of each rank's part of an array of ``shape``, in which the axis to cut is the first.

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


def _apart(source: Piece, targets: Sequence[Piece], kept: list[object]) -> Piece:
    """Return the piece, or a copy of it if receiving some part would overwrite what is sent later."""
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
    """Yield the sections of the pieces from ``begin`` to ``end`` of the stream, with offsets counted from ``begin``."""
    for start, address, nbytes in pieces:
        low, high = max(start, begin), min(start + nbytes, end)
        if low < high:
            yield low - begin, address + low - start, high - low
