"""Rounds between hosts: every rank tells all others one frame. A rank that stops tells them a word in place of one.

When a call between hosts fails, three rules decide which ranks the error names. The first that applies wins.
On one host the memory that ranks share decides it (``native/group/meeting.hpp``, ``shared_memory.py``).

1. *The word.* A rank that stops for a reason of its own sends ``failed``, ``interrupted`` or ``left``, and the others
   name it. A rank that stops because of others sends ``lost`` with their numbers, and these are named.
2. *The connection.* If a connection breaks without a word, the rank at its other end is named.
3. *The deadline.* A rank past its deadline sends ``late`` and waits one grace period for the words of the others.
   Then it names the ranks that are silent and still owe it messages of the call.

Each rank names what it has seen: where two fail at about the same time, different ranks may name different ones.
"""

from __future__ import annotations

import collections
import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from treefold.backends import HostArray
from treefold.engines.interface import Channel, Transfer, Transfers
from treefold.engines.times import CLOSE_S, GRACE_PERIOD_S, POLL_S, WARN_AFTER_S
from treefold.errors import DeadlineError, GroupError, PeerLostError
from treefold.group.protocol import (
    FRAME_BYTES,
    FRAME_ROOM,
    FRAME_TAG,
    LATE,
    LOST,
    REST_TAG,
    Frame,
    Word,
    frame_bytes,
)

#: The words of ranks that stop because of others.
_OTHERS = {LOST, LATE}

Warn = Callable[[Sequence[int]], None]


class Rounds:
    """The rounds of one group, one after the other. One call has one or several of them."""

    def __init__(self, channel: Channel) -> None:
        """Use a channel, alone."""
        self.channel = channel
        #: Lets go the ranks of this host, which may wait for this one in its memory. By default there are none.
        self.leave_host: Callable[[], None] = lambda: None
        #: The rounds that have begun, and up to which one the call under way needs the other ranks.
        self.sequence = self._needed = 0
        #: Whether this rank has begun to stop; and the error for which it has, which what is under way raises.
        self._is_stopping = False
        self.broken: GroupError | None = None
        self.frames = Frames(channel)

    def tell(self, frame: Frame, deadline: float, warn: Warn) -> list[Frame]:
        """Return what each rank says in this round, by rank.

        Raises:
            GroupError: a rank has stopped, is gone, or is late.

        """
        if self.broken is not None:
            raise self.broken.with_traceback(None)  # a traceback would keep the arrays of its call
        self.sequence += 1
        self._needed = self.sequence
        frames, peers = self.frames, self.frames.peers
        frames.send(frame, self.sequence)
        while (transfer := self._wait(self.channel.now())) is not None:
            frames.note(transfer)  # others may have waited for this rank in vain, and said so behind their frames
        self._check_peers()
        self._wait_for({frames.awaited(peer) for peer in peers if self._is_missing(peer)}, deadline, warn)
        said = {peer: frames.of_round(peer, self.sequence) for peer in peers}
        rests = {peer: np.empty(most - FRAME_ROOM, np.uint8) for peer, (_, most) in said.items() if most > FRAME_ROOM}
        waiting = {self.channel.receive(peer, REST_TAG, rest) for peer, rest in rests.items()}
        if len(frame.payload) > FRAME_ROOM:
            rest = np.frombuffer(frame.payload, np.uint8)[FRAME_ROOM:].copy()
            for peer in peers:
                self.channel.send(peer, REST_TAG, rest)
        self._wait_for(waiting, deadline, warn)
        frames_of = {self.channel.rank: frame} | {peer: one for peer, (one, _) in said.items()}
        for peer, rest in rests.items():
            frames_of[peer] = frames_of[peer]._replace(payload=frames_of[peer].payload + rest.tobytes())
        if self.channel.limits.needs_calls or len(frame.payload) <= FRAME_ROOM:
            # Frames are small, and all before them has been received. The rest of a payload may take long, and goes on
            # by itself over most engines.
            self.channel.flush(min(deadline, self.channel.now() + CLOSE_S))
        return [frames_of[rank] for rank in range(self.channel.size)]

    def arrivals(self, waiting: Transfers, deadline: float, warn: Warn) -> Iterator[Transfer]:
        """Yield the values that arrive, as long as ``waiting``, which the caller keeps, is not empty; a vote follows.

        Raises:
            GroupError: a rank has stopped, is gone, or is late.

        """
        self.check()
        return self._arrivals(waiting, deadline, warn)

    def check(self) -> None:
        """Raise if one of the ranks that vote at the end of this call has stopped, or is gone."""
        self._needed = self.sequence + 1
        self._check_peers()

    def leave(self, cause: str) -> None:
        """Tell the others that this rank stops for a reason of its own, without waiting for them to call."""
        if not self._is_stopping:
            self._stop(GroupError.closed(), Word(cause))

    def stop_missed(self, peer: int) -> GroupError:
        """Stop because a rank of this host is gone. Wait for its word up to one grace period."""
        if self.broken is not None:
            return self.broken
        self._hear({peer}, self.channel.now() + GRACE_PERIOD_S)
        return self._stop_lost(peer)

    def stop_late(self) -> GroupError:
        """Stop because a deadline has passed, this rank's or another's, and return the error for that.

        This rank tells the others, and waits one grace period for their words. All of it takes two at most.
        """
        if self.broken is not None:
            return self.broken
        self._is_stopping = True  # a signal handler that closes the group meanwhile tells the others nothing else
        self.leave_host()
        missing = [peer for peer in self.frames.peers if self._is_missing(peer)]
        until = self.channel.now() + GRACE_PERIOD_S
        try:
            self.frames.send(Word(LATE).frame(), self.sequence)
            self._hear(set(missing), until)
            self._read_words(until + GRACE_PERIOD_S - CLOSE_S)
        except BaseException:
            self._stop(GroupError.closed(), Word(LATE), has_spoken=True)
            raise
        stopped = [peer for peer in missing if peer in self.frames.words and not self.frames.has_given_up(peer)]
        silent = [peer for peer in missing if peer not in self.frames.words and self._is_missing(peer)]
        error: GroupError = DeadlineError.between_hosts(sorted(silent)) if silent else DeadlineError.slow()
        if stopped:
            error = _error_of(stopped[0], self.frames.words, self.channel.rank)
        return self._stop(error, Word(LATE), has_spoken=True, until=until + GRACE_PERIOD_S)

    def _is_missing(self, peer: int) -> bool:
        """Tell whether the call under way still needs frames of a rank."""
        return self.frames.last_round[peer] < self._needed

    def _check_peers(self) -> None:
        """Raise if a rank has given the call up, or if one that still owes a frame has stopped or is gone."""
        for peer in self.frames.peers:
            if self.frames.has_given_up(peer):
                raise self.stop_late()
            if self._is_missing(peer) and self.frames.has_stopped(peer):
                raise self._stop_lost(peer)

    def _wait_for(self, waiting: set[Transfer], deadline: float, warn: Warn) -> None:
        for done in self._arrivals(waiting, deadline, warn):
            waiting.discard(done)

    def _arrivals(self, waiting: Transfers, deadline: float, warn: Warn) -> Iterator[Transfer]:
        """Yield what arrives, frames of this round among it."""
        warn_at = self.channel.now() + WARN_AFTER_S
        while waiting:
            transfer = self._wait(min(deadline, warn_at))
            # Values that still arrive do not put the deadline off. A frame that has come in time may be read after it.
            if (transfer is None or transfer.tag != FRAME_TAG) and self.channel.now() >= deadline:
                raise self.stop_late()
            if transfer is None:
                warn(sorted({one.peer for one in waiting}))
                warn_at = deadline
                continue
            if self.frames.note(transfer):
                if self.frames.has_given_up(transfer.peer):
                    raise self.stop_late()
                # A rank that has told this round, and stopped since, is not needed in it.
                if self._is_missing(transfer.peer) or (transfer.error and transfer in waiting):
                    raise self._stop_lost(transfer.peer)
            if not transfer.error and (transfer.tag != FRAME_TAG or transfer in waiting):
                yield transfer

    def _wait(self, until: float) -> Transfer | None:
        transfer = self.frames.wait(until)
        if self.broken is not None:  # a signal handler has closed the group
            raise self.broken
        return transfer

    def _hear(self, ranks: set[int], until: float) -> None:
        """Wait until all of these have spoken or are gone."""
        ended = {peer for peer in ranks if self.frames.has_stopped(peer)}
        while len(ended) < len(ranks) and (transfer := self._wait(until)) is not None:
            if self.frames.note(transfer) and transfer.peer in ranks:
                ended.add(transfer.peer)

    def _read_words(self, until: float) -> bool:
        """Take the words that ranks have left in the engine's store; tell whether it could be read."""
        words = self.channel.read_words(until)
        for peer, said in (words or {}).items():
            self.frames.words.setdefault(peer, Word.decode(said))
        return words is not None

    def _stop_lost(self, peer: int) -> GroupError:
        """Stop because a rank has stopped or is gone, and return the error that names the rank to blame."""
        if self.broken is not None:
            return self.broken
        self._is_stopping = True  # as in stop_late
        try:
            # A word that was stuck behind data is in the store, where it was left before the connections were broken.
            is_readable = peer in self.frames.words or self._read_words(self.channel.now() + GRACE_PERIOD_S)
        except BaseException:
            self._stop(GroupError.closed(), Word(LOST, (peer,)))
            raise
        if self.frames.has_given_up(peer):
            return self.stop_late()
        if peer not in self.frames.words and not is_readable and self.channel.size > 2:  # noqa: PLR2004 - else nobody else is there
            return self._stop(PeerLostError.unexplained([peer]), Word(LOST, (peer,)))
        error = _error_of(peer, self.frames.words, self.channel.rank)
        return self._stop(error, Word(LOST, error.ranks))

    def _stop(
        self, error: GroupError, word: Word, *, has_spoken: bool = False, until: float | None = None
    ) -> GroupError:
        """Tell the others a word, break all connections, and return the error, which all later calls raise.

        That takes until a moment, of ``channel.now()``, by default one grace period.
        """
        self._is_stopping, self.broken = True, error
        until = self.channel.now() + GRACE_PERIOD_S if until is None else until
        try:
            self.leave_host()  # first, so that ranks that wait there do not wait for what follows
            if not has_spoken:
                self.frames.send(word.frame(), self.sequence)
            # What this rank has sent before is out before its connections break: the others may need nothing else.
            self.channel.flush(until - CLOSE_S)
        finally:
            self.channel.stop(word.encode(), until)
            self.channel.close()
        return error


def _error_of(peer: int, words: Mapping[int, Word], own: int) -> PeerLostError:
    """Return the error of a rank that has stopped with a word, or is gone without one."""
    word = words.get(peer)
    if word is None or word.cause != LOST:
        return PeerLostError.between_hosts(LOST if word is None else word.cause, [peer])
    # A rank that has sent which ranks it misses is alive, so it is not named. Those may have sent their causes.
    if own in word.ranks:
        return PeerLostError.given_up(own)
    causes = {one.cause for rank in word.ranks if (one := words.get(rank)) and one.cause not in _OTHERS}
    return PeerLostError.between_hosts(min(causes, default=LOST), sorted(word.ranks) or [peer])


class Frames:
    """The messages of ranks over a channel: one frame in each round, and a word when a rank stops."""

    def __init__(self, channel: Channel) -> None:
        """Begin to receive the first two frames of each rank."""
        self._channel = channel
        # The next rank first: so that no port receives from all at once.
        self.peers = [(channel.rank + step) % channel.size for step in range(1, channel.size)]
        #: The last round that each rank has told, and the words of those that have stopped.
        self.last_round = [0] * channel.size
        self.words: dict[int, Word] = {}
        # Four for each rank: for this round; for the next, because others may be one round ahead; and for the two after
        # it, because their receives are open then. Zeros, so that the rest behind a short message is no old frame.
        self._buffers = np.zeros((4, channel.size, FRAME_BYTES), np.uint8)
        #: The receives of each rank's next two frames. They are always open, so that a word is taken while the program
        #: computes.
        self._next = {peer: self._receive(peer, 1) for peer in self.peers}
        self._after = {peer: self._receive(peer, 2) for peer in self.peers}
        #: Of the latter, those that have come first: MPI promises the order of messages, not that of their ends.
        self._early = set[Transfer]()
        #: The transfers that ended while this rank did something else.
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
