"""Pieces of memory that ranks give and take, as messages between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from treefold.backends import HostArray
from treefold.engines.channel import Channel, Transfer
from treefold.group.rounds import ROUND_TAGS

#: A piece of a stream that all ranks know, and the memory of this process that it comes from or goes to.
Placed = tuple[int, HostArray]


class Crossing:
    """What one rank gives to a stream and takes from it; the stream itself is nowhere.

    ``said``: what the others must be told of it.
    """

    def __init__(self, channel: Channel, given: Sequence[Placed], taken: Sequence[Placed]) -> None:
        """Describe the pieces."""
        self._channel, self._given, self._taken = channel, given, taken
        counts = np.array([len(given), len(taken)], "<u8").tobytes()
        self.said = counts + _spans(given).tobytes() + _spans(taken).tobytes()

    def begin(self, said: Sequence[bytes]) -> set[Transfer]:
        """Begin to send and receive, given what all ranks have said; return what this rank waits for."""
        channel, waiting = self._channel, set[Transfer]()
        told = [_read(one) for one in said]
        rank, rails = channel.rank, channel.limits.rails
        peers = [(rank + step) % channel.size for step in range(1, channel.size)]
        for peer in peers:
            for index, (_, taker, begin, end) in enumerate(self._messages(told[peer][0], told[rank][1])):
                where, array = self._taken[taker]
                waiting.add(channel.receive(peer, ROUND_TAGS + index % rails, array[begin - where : end - where]))
        for peer in peers:
            for index, (giver, _, begin, end) in enumerate(self._messages(told[rank][0], told[peer][1])):
                where, array = self._given[giver]
                channel.send(peer, ROUND_TAGS + index % rails, array[begin - where : end - where])
        for giver, taker, begin, end in self._messages(told[rank][0], told[rank][1]):
            (there, source), (here, target) = self._given[giver], self._taken[taker]
            np.copyto(target[begin - here : end - here], source[begin - there : end - there])
        return waiting

    def _messages(self, given: HostArray, taken: HostArray) -> Iterator[tuple[int, int, int, int]]:
        """Yield which piece given goes to which piece taken, and which part of the stream it is; alike on all ranks."""
        low = np.maximum.outer(given[:, 0], taken[:, 0])
        high = np.minimum.outer(given.sum(axis=1), taken.sum(axis=1))
        step = self._channel.limits.message_bytes
        for giver, taker in np.argwhere(low < high).tolist():
            end = int(high[giver, taker])
            for begin in range(int(low[giver, taker]), end, step):
                yield giver, taker, begin, min(begin + step, end)


def _spans(pieces: Sequence[Placed]) -> HostArray:
    return np.array([(at, array.nbytes) for at, array in pieces], "<u8").reshape(-1, 2)


def _read(said: bytes) -> tuple[HostArray, HostArray]:
    given, _ = np.frombuffer(said, "<u8", 2).tolist()
    spans = np.frombuffer(said, "<u8", offset=16).astype(np.int64).reshape(-1, 2)
    return spans[:given], spans[given:]
