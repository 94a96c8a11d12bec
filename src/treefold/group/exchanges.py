"""Calls in which ranks get different parts: scatters and exchanges, of arrays that are cut along an axis.

Ranks tell each other lengths first. Then everything moves as one stream of bytes, in parts if it is larger than the
memory that the ranks share.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from treefold.backends import HostArray
from treefold.calls.entry import Entry, Part, read_entry
from treefold.calls.leaves import read_gathered_leaf
from treefold.calls.reader import read_components
from treefold.calls.wrap import component
from treefold.errors import ArgumentError, MismatchError
from treefold.errors.words import short
from treefold.execution import native
from treefold.group.byte_streams import Stream, move
from treefold.group.contributions import address_of, check_movable, host_arrays, layout_of
from treefold.group.protocol import CallKind, call_key
from treefold.group.takers import hand_over, memory_of, read_joining_takers
from treefold.group.traced_calls import tracing_backend
from treefold.group.transport.link import Link, Piece
from treefold.values import PerReplica

_DEVICE = "cpu:0"


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
