"""The frames of the other ranks, and the word that a rank tells in place of its next one, as they come."""

from __future__ import annotations

import collections
import contextlib
import threading
from collections.abc import Iterator

import numpy as np

from treefold.backends import HostArray
from treefold.engines.interface import Channel, Transfer
from treefold.engines.times import POLL_S
from treefold.group.protocol import FRAME_BYTES, FRAME_TAG, LATE, Frame, Word, frame_bytes


class Frames:
    """What ranks tell each other over a channel: one frame in each round, and a word when they stop."""

    def __init__(self, channel: Channel) -> None:
        """Begin to receive the first two frames of each rank."""
        self._channel = channel
        # The next rank first: so that no port receives from all at once.
        self.peers = [(channel.rank + step) % channel.size for step in range(1, channel.size)]
        #: The last round that each rank has told, and the words of those that have stopped.
        self.last_round = [0] * channel.size
        self.words: dict[int, Word] = {}
        # Four for each rank: of this round; of the next, because others may be one round ahead; and of the two after
        # that, whose receives are open then. Zeros: what a shorter message leaves must be no frame of an earlier group.
        self._buffers = np.zeros((4, channel.size, FRAME_BYTES), np.uint8)
        #: The receives of each rank's next two frames. They are always open, so that a word is taken while the program
        #: computes.
        self._next = {peer: self._receive(peer, 1) for peer in self.peers}
        self._after = {peer: self._receive(peer, 2) for peer in self.peers}
        #: Of the latter, those that have come first: MPI promises the order of messages, not that of their ends.
        self._early = set[Transfer]()
        #: What has come while this rank did something else.
        self._arrived = collections.deque[Transfer]()

    def send(self, frame: Frame, sequence: int) -> None:
        """Begin to send a frame to all others."""
        own = frame_bytes(frame, sequence)
        for peer in self.peers:
            self._channel.send(peer, FRAME_TAG, own)  # to one that is gone it fails, and so do the receives from it

    def awaited(self, peer: int) -> Transfer:
        """Return the receive of a rank's next frame."""
        return self._next[peer]

    def has_stopped(self, peer: int) -> bool:
        """Return whether a rank has told its word, or its connection is known to be broken."""
        return peer in self.words or bool(self._next[peer].error)

    def has_given_up(self, peer: int) -> bool:
        """Return whether a rank has told that its deadline has passed."""
        return peer in self.words and self.words[peer].cause == LATE

    def of_round(self, peer: int, sequence: int) -> tuple[Frame, int]:
        """Return what a rank has told in a round, and the length of its payload, of which the rest may follow.

        Raises:
            GroupError: it is no frame of this round.

        """
        return Frame.decode(self._buffer(peer, sequence), sequence)

    def wait(self, until: float) -> Transfer | None:
        """Return something that has been received or has failed, once all before it is known; None at ``until``."""
        while (transfer := self._arrived.popleft() if self._arrived else self._channel.wait(until)) is not None:
            # A send that fails needs nothing more, or is missed by what its receiver does not send.
            if transfer.is_send:
                continue
            if transfer is not self._after[transfer.peer]:
                return transfer
            if not transfer.error:  # else it is looked at where what came before it is known
                self._early.add(transfer)
        return None

    @contextlib.contextmanager
    def arriving(self) -> Iterator[None]:
        """Let messages arrive while this rank does something else, also over an engine that needs calls for that."""
        if not self._channel.limits.needs_calls:
            yield
            return
        over = list[None]()

        def call() -> None:
            while not over:
                transfer = self._channel.wait(self._channel.now() + POLL_S)
                if transfer is not None:
                    self._arrived.append(transfer)

        # The calling thread uses no channel until this one has ended, so one thread at a time does.
        thread = threading.Thread(target=call, daemon=True)
        thread.start()
        try:
            yield
        finally:
            # A list, not an Event: Ctrl-C may be raised where a function in Python begins, and the thread would stay.
            over.append(None)
            thread.join()

    def note(self, transfer: Transfer) -> bool:
        """Note a frame or a word that has come; return whether its rank has stopped, or is gone."""
        peer = transfer.peer
        if transfer.error or transfer is not self._next[peer]:
            return bool(transfer.error)
        is_early = True
        while is_early:
            sequence = self.last_round[peer] + 1
            word = Word.in_frame(self._buffer(peer, sequence))
            if word is not None:
                self.words.setdefault(peer, word)
                return True
            self.last_round[peer] = sequence
            self._next[peer], self._after[peer] = self._after[peer], self._receive(peer, sequence + 2)
            is_early = self._next[peer] in self._early
            self._early.discard(self._next[peer])
        return bool(self._next[peer].error)

    def _buffer(self, peer: int, sequence: int) -> HostArray:
        frame: HostArray = self._buffers[sequence % len(self._buffers), peer]
        return frame

    def _receive(self, peer: int, sequence: int) -> Transfer:
        return self._channel.receive(peer, FRAME_TAG, self._buffer(peer, sequence))
