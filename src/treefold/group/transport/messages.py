"""The memory of calls over hosts, and pieces of memory that ranks give and take, as messages between them."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from treefold.backends import HostArray, Row
from treefold.backends.numpy import NumpyBackend
from treefold.engines.interface import Channel, Transfer
from treefold.execution import native
from treefold.execution.actions import FlatMemory, LeafActions
from treefold.execution.program_walk import ProgramWalk
from treefold.fold import Fold
from treefold.group.contributions import address_of
from treefold.group.protocol import VALUE_TAGS
from treefold.group.transport.exact_memory import ExactMemory
from treefold.plan import Plan
from treefold.plan.ir import Buffer, Role

#: A piece of a stream that all ranks know, and the memory of this process that it comes from or goes to.
Placed = tuple[int, HostArray]
#: The numbers of a source and a target, and the part of the stream that they share.
Crossed = tuple[int, int, int, int]


class Crossing:
    """The pieces that one rank sends into a stream and receives from it. No rank holds the stream itself.

    Attributes:
        said: The positions of its pieces, in bytes, as the other ranks must know them.

    """

    def __init__(self, channel: Channel, sources: Sequence[Placed], targets: Sequence[Placed]) -> None:
        """Describe the pieces."""
        self._channel, self._sources, self._targets = channel, sources, targets
        #: The arrays that arrive for several targets, and these targets.
        self._landed: list[tuple[HostArray, list[HostArray]]] = []
        counts = np.array([len(sources), len(targets)], "<u8").tobytes()
        self.said = counts + _spans(sources).tobytes() + _spans(targets).tobytes()

    def begin(self, said: Sequence[bytes]) -> set[Transfer]:
        """Begin to send and receive, given what all ranks have said; return what this rank waits for."""
        channel, waiting = self._channel, set[Transfer]()
        spans = [_read(one) for one in said]
        rank, rails = channel.rank, channel.limits.rails
        peers = [(rank + step) % channel.size for step in range(1, channel.size)]
        # All receives before the first send: no rank's messages then wait for a peer that is still sending its own.
        for peer in peers:
            for index, message in enumerate(self._messages(spans[peer][0], spans[rank][1])):
                waiting.add(channel.receive(peer, VALUE_TAGS + index % rails, self._room_for(message)))
        for peer in peers:
            for index, message in enumerate(self._messages(spans[rank][0], spans[peer][1])):
                parts = [_part(self._sources[source], *span) for source, _, *span in message]
                channel.send(peer, VALUE_TAGS + index % rails, parts[0] if len(parts) == 1 else np.concatenate(parts))
        for source, target, *span in self._pieces(spans[rank][0], spans[rank][1]):
            np.copyto(_part(self._targets[target], *span), _part(self._sources[source], *span))
        return waiting

    def finish(self) -> None:
        """Copy the pieces of messages that carried several to their targets."""
        for arrived, targets in self._landed:
            ends = np.cumsum([target.nbytes for target in targets])
            for target, part in zip(targets, np.split(arrived, ends[:-1]), strict=True):
                np.copyto(target, part)

    def _room_for(self, message: Sequence[Crossed]) -> HostArray:
        """Return the memory to receive a message in: its only target, or new memory for several."""
        targets = [_part(self._targets[target], *span) for _, target, *span in message]
        if len(targets) == 1:
            return targets[0]
        # Several pieces of one message lie apart in the end, so they arrive in one buffer, and ``finish`` lays them
        # out.
        self._landed.append((np.empty(sum(target.nbytes for target in targets), np.uint8), targets))
        return self._landed[-1][0]

    def _messages(self, sources: HostArray, targets: HostArray) -> Iterator[list[Crossed]]:
        """Yield the pieces of each message, alike on all ranks: an engine is as slow with one byte as with 1,000."""
        message, nbytes = list[Crossed](), 0
        for piece in self._pieces(sources, targets):
            *_, begin, end = piece
            if message and nbytes + end - begin > self._channel.limits.chunk_bytes:
                yield message
                message, nbytes = [], 0
            message.append(piece)
            nbytes += end - begin
        if message:
            yield message

    def _pieces(self, sources: HostArray, targets: HostArray) -> Iterator[Crossed]:
        """Yield which source goes to which target, and which part of the stream it is; alike on all ranks."""
        # Every rank computes this from the same spans, so both ends cut and order their messages alike, and need no
        # headers.
        begins, ends, step = targets[:, 0], targets.sum(axis=1), self._channel.limits.message_bytes
        for source, (at, nbytes) in enumerate(sources.tolist()):
            low, high = np.maximum(begins, at), np.minimum(ends, at + nbytes)
            for target in np.flatnonzero(low < high).tolist():
                end = int(high[target])
                for begin in range(int(low[target]), end, step):
                    yield source, target, begin, min(begin + step, end)


def _part(piece: Placed, begin: int, end: int) -> HostArray:
    at, array = piece
    return array[begin - at : end - at]


def _spans(pieces: Sequence[Placed]) -> HostArray:
    return np.array([(at, array.nbytes) for at, array in pieces], "<u8").reshape(-1, 2)


def _read(said: bytes) -> tuple[HostArray, HostArray]:
    num_sources, _ = np.frombuffer(said, "<u8", 2).tolist()
    spans = np.frombuffer(said, "<u8", offset=16).astype(np.int64).reshape(-1, 2)
    return spans[:num_sources], spans[num_sources:]


_NUMPY = NumpyBackend()


def memory_at(address: int, nbytes: int, owner: object = None) -> HostArray:
    """Return the bytes at an address of this process, which must stay there; views of them keep ``owner``."""
    if not nbytes:
        return np.empty(0, np.uint8)
    memory: Any = (ctypes.c_uint8 * nbytes).from_address(address)
    # An engine may read what is under way long after a call has failed, and after its caller has dropped the array.
    memory.owner = owner
    return np.ctypeslib.as_array(memory)


def arrays_of(row: Row) -> list[HostArray]:
    """Return the arrays of a row, which they keep, one-dimensional, writable, whatever their framework."""
    length = int(np.prod(row.shape, dtype=np.int64))
    return [memory_at(address, length * row.dtype.itemsize, row).view(row.dtype) for address in row.addresses]


class KeptPieces(list[tuple[int, int, int]]):
    """Pieces of a stream: their offsets in it, addresses and bytes. The list keeps their memory alive."""

    def __init__(self, placed: Iterable[tuple[int, HostArray]]) -> None:
        """Give row-major arrays to a stream."""
        self._arrays = [(at, array) for at, array in placed if array.nbytes]
        super().__init__((at, address_of(array), array.nbytes) for at, array in self._arrays)


class CallMemory:
    """The memory of one rank's call: what it brings, and where its results are made, before anything moves."""

    def __init__(
        self, plan: Plan, walk: ProgramWalk, rank: int, fold: Fold, contributions: Sequence[Sequence[HostArray]]
    ) -> None:
        """Take memory for everything that the rank holds. ``contributions``: this rank's arrays of each leaf, flat.

        Raises:
            MemoryError: there is none.

        """
        self.walk, self._plan = walk, plan
        self.leaves = [
            LeafActions(leaf, 0, _NUMPY, (-1,), path, fold, None)
            for leaf, path in zip(plan.leaves, plan.paths, strict=True)
        ]
        counts = [0] * len(plan.leaves)
        self.results: list[Any] = [None] * len(plan.leaves)
        arrays: list[Any] = []
        own = [iter(some) for some in contributions]
        for index, buffer in enumerate(plan.buffers):
            # Of all ranks: a mean divides by the contributions of the whole group.
            counts[buffer.leaf] += buffer.role is Role.INPUT
            array = None
            if walk.holder(index) == rank and index not in walk.aliases and buffer.role is not Role.EXACT:
                array = next(own[buffer.leaf]) if buffer.role is Role.INPUT else self._new(buffer)
            if array is not None and buffer.role is Role.OUTPUT:
                self.results[buffer.leaf] = array
            arrays.append(array)
        for index, source in walk.aliases.items():
            # Views of contributions: walks read them where they lie, because no plan writes an input.
            arrays[index] = arrays[source.buffer][source.start : source.stop]
        self.leaves = [one._replace(num_contributions=count) for one, count in zip(self.leaves, counts, strict=True)]
        self.flat: FlatMemory = ExactMemory(self.leaves, plan.buffers, arrays, np.copyto, walk.replicas)

    def itemsize(self, buffer: int) -> int:
        """Return the bytes of an element of a buffer, whoever holds it."""
        one = self._plan.buffers[buffer]
        return np.dtype(self.leaves[one.leaf].dtype(one.role)).itemsize

    def _new(self, buffer: Buffer) -> HostArray:
        dtype = np.dtype(self.leaves[buffer.leaf].dtype(buffer.role))
        return native.new_result((buffer.length,), dtype)
