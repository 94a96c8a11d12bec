"""Rounds: every rank tells all others one frame. What fails becomes the group's error, on all alike (``blame.py``)."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence

import numpy as np

from treefold.backends import HostArray
from treefold.engines.interface import Channel, Enough, Transfer, Waiting
from treefold.errors import GroupError, PeerLostError
from treefold.group.links.blame import AWAY, AWAY_S, LATE, LEFT, LOST, Said, error_of, have_answered
from treefold.group.links.protocol import FRAME_BYTES, FRAME_ROOM, FRAME_TAG, REST_TAG, Frame, frame_bytes

#: How long ranks wait for the words of one who does not answer: not long after a deadline, which is late enough.
_GRACE_S, _GRACE_AT_DEADLINE_S = 0.2, 0.06
_GRACE_AT_THE_END_S = 0.05
#: How long connections break after the first, where several ranks have ended at once. Ranks whose deadline has passed
#: wait for the answer of this one meanwhile.
_TOGETHER_S = 0.02
#: How long a rank waits before it looks at the clock again; if that is so much later, it was away.
_STEP_S, _ABSENT_S = 0.25, 0.1
_FLUSH_S = 1.0
#: How long this rank looks for the words of one that is gone.
_LOOK_S = 0.05
_WARN_AFTER_S = 30.0


class Rounds:
    """The rounds of one group, one after the other. One call has one or several of them."""

    def __init__(self, channel: Channel, leave_host: Callable[[], None] = lambda: None) -> None:
        """Use a channel, alone. ``leave_host``: lets go the ranks of this host, which may wait for this one there."""
        self.channel, self._leave_host = channel, leave_host
        #: The rounds that have begun, and those that have ended on this rank; whether the last one has ended a call.
        self.sequence, self._ended, self._holds = 0, 0, True
        self.broken: GroupError | None = None
        #: When this rank has last looked at the clock, and from when until when it had last been away.
        self._looked_at, self._absence = channel.now(), (-math.inf, -math.inf)
        # Four for each rank: of this round, of the next, as others may be one round ahead, and of the two after that,
        # whose receives are open then. Zeros: what a shorter message leaves must be no frame of an earlier group.
        self._frames = np.zeros((4, channel.size, FRAME_BYTES), np.uint8)
        #: How many rounds each rank has told, as far as that has come; and the receives of its next two frames. One of
        #: them is always open, also where nobody takes what has come: by it this rank notices who stops.
        self._told = [0] * channel.size
        self._next = {peer: self._receive_frame(peer, 1) for peer in self.peers}
        self._after = {peer: self._receive_frame(peer, 2) for peer in self.peers}
        #: Of the latter, those that have come first: MPI promises the order of messages, not that of their ends.
        self._early = set[Transfer]()

    @property
    def peers(self) -> list[int]:
        """The other ranks, the next one first: so that no port receives from all at once."""
        rank, size = self.channel.rank, self.channel.size
        return [(rank + step) % size for step in range(1, size)]

    def tell(self, frame: Frame, deadline: float, warn: Callable[[Sequence[int]], None]) -> list[Frame]:
        """Return what each rank says in this round, by rank.

        Raises:
            GroupError: a rank is gone, or late.

        """
        if self.broken is not None:
            raise self.broken.with_traceback(None)  # those of all calls since would be kept, and what they hold
        self.sequence += 1
        self.look_at_clock()
        own = frame_bytes(frame, self.sequence)
        gone = [peer for peer in self.peers if self.channel.send(peer, FRAME_TAG, own).error]
        # Those may have told the round, and say that it has failed: then it has for this rank, too.
        self._miss([peer for peer in gone if self._has_stopped(peer, deadline)], deadline)
        missing = {self._next[peer] for peer in self.peers if self._told[peer] < self.sequence}
        self._wait_in_round(missing, deadline, warn)
        said = {peer: Frame.decode(self._buffer(self.sequence, peer), self.sequence) for peer in self.peers}
        long = {peer: length for peer, (_, length) in said.items() if length > FRAME_ROOM}
        rests = {peer: np.empty(length - FRAME_ROOM, np.uint8) for peer, length in long.items()}
        waiting = {self.channel.receive(peer, REST_TAG, rest) for peer, rest in rests.items()}
        if len(frame.payload) > FRAME_ROOM:
            rest = np.frombuffer(frame.payload, np.uint8)[FRAME_ROOM:].copy()
            for peer in self.peers:
                self.channel.send(peer, REST_TAG, rest)
        self._wait_in_round(waiting, deadline, warn)
        frames = {peer: one for peer, (one, _) in said.items()}
        for peer, rest in rests.items():
            frames[peer] = frames[peer]._replace(payload=frames[peer].payload + rest.tobytes())
        # Last: a rank counts a round as ended once it could return it, which is what the verdict on a failure goes
        # by.
        self._ended, self._holds = self.sequence, False
        return [frame if rank == self.channel.rank else frames[rank] for rank in range(self.channel.size)]

    def complete(self) -> None:
        """Note that the last round has ended a call: this rank has its result."""
        self._holds = True

    def wait_for(self, waiting: Collection[Transfer], deadline: float, warn: Callable[[Sequence[int]], None]) -> None:
        """Wait until all of these have arrived."""
        open_ones = set(waiting)
        for done in self.arrivals(open_ones, deadline, warn):
            open_ones.discard(done)

    def arrivals(self, waiting: Waiting, deadline: float, warn: Callable[[Sequence[int]], None]) -> Iterator[Transfer]:
        """Yield what arrives, as long as ``waiting``, which the caller keeps, is not empty.

        Raises:
            GroupError: a rank is gone, or late.

        """
        self.check(deadline)
        return self._arrivals(waiting, deadline, warn)

    def check(self, deadline: float) -> None:
        """Look whether all are still there, as far as is known.

        Raises:
            GroupError: a rank is gone.

        """
        self._miss(self._broken(), deadline)

    def _miss(self, gone: Collection[int], deadline: float) -> None:
        """Raise the error of ranks that are gone, if any are."""
        self.look_at_clock()  # this rank may have been stopped where it did not wait
        if gone:
            raise self.ended(LOST, gone, deadline)

    def _buffer(self, sequence: int, peer: int) -> HostArray:
        frame: HostArray = self._frames[sequence % len(self._frames), peer]
        return frame

    def _receive_frame(self, peer: int, sequence: int) -> Transfer:
        """Begin to receive a frame of a rank."""
        return self.channel.receive(peer, FRAME_TAG, self._buffer(sequence, peer))

    def _note_frame(self, peer: int) -> Transfer:
        """Count a frame that has come, and one behind it that had come before; return the receive of the next."""
        is_early = True
        while is_early:
            self._told[peer] += 1
            self._next[peer], self._after[peer] = self._after[peer], self._receive_frame(peer, self._told[peer] + 2)
            is_early = self._next[peer] in self._early
            self._early.discard(self._next[peer])
        return self._next[peer]

    def _broken(self) -> list[int]:
        """Return those to whom the connections are known to be broken."""
        return [peer for peer in self.peers if self._next[peer].error or self._after[peer].error]

    def _wait_in_round(self, waiting: set[Transfer], deadline: float, warn: Callable[[Sequence[int]], None]) -> None:
        """Wait for what all ranks tell in a round."""
        self._miss([one.peer for one in waiting if one.error], deadline)
        for done in self._arrivals(waiting, deadline, warn, in_round=True):
            waiting.discard(done)

    def _arrivals(
        self,
        waiting: Waiting,
        deadline: float,
        warn: Callable[[Sequence[int]], None],
        *,
        in_round: bool = False,
    ) -> Iterator[Transfer]:
        """Yield what arrives; ``in_round``: also frames, and who has told this round may have done so as its last."""
        warn_at, known = self.channel.now() + _WARN_AFTER_S, None
        while waiting:
            transfer, known = known or self._wait(min(deadline, warn_at)), None
            if self._looked_at >= deadline and (transfer is None or not in_round):
                self._expire([one for one in waiting if one is not transfer], deadline)
            if transfer is None:
                warn(sorted({one.peer for one in waiting}))
                warn_at = deadline
            elif transfer.error:
                has_told = in_round and transfer not in waiting
                if not has_told or self.broken is not None or self._has_stopped(transfer.peer, deadline):
                    if self._looked_at >= deadline:  # by then all give up, one after the other
                        self._expire([*waiting], deadline)
                    raise self.ended(LOST, {transfer.peer}, deadline, {one.peer for one in waiting})
            else:
                is_frame = transfer is self._next[transfer.peer]
                if is_frame and (coming := self._note_frame(transfer.peer)).error:
                    known = coming
                if in_round or not is_frame:
                    yield transfer

    def _expire(self, waiting: Collection[Transfer], deadline: float) -> None:
        """Raise the error of a deadline that has passed, unless nothing is waited for."""
        if waiting:
            missed = {one.peer for one in waiting if not one.is_derived}
            raise self.ended(LATE, missed, deadline, {one.peer for one in waiting})

    def _wait(self, until: float) -> Transfer | None:
        """Wait for what has been received, in steps: a rank that was stopped learns of it."""
        now = self.look_at_clock()
        while True:
            transfer = self.channel.wait(min(until, now + _STEP_S))
            now = self.look_at_clock()
            if now >= until and transfer is None:
                return None
            # A send that fails needs nothing more, or is missed by what it does not send.
            if transfer is None or transfer.is_send:
                continue
            if transfer is not self._after[transfer.peer]:
                return transfer
            if not transfer.error:  # else it is looked at where what came before it is known
                self._early.add(transfer)

    def look_at_clock(self, waited_s: float = _STEP_S) -> float:
        """Return the time; note if this rank has not looked for long, as it was stopped, or in no call.

        ``waited_s``: for how long, at most, it has waited since it last did.
        """
        now = self.channel.now()
        if now > self._looked_at + waited_s + _ABSENT_S:
            self._absence = self._looked_at, now
        self._looked_at = now
        return now

    def _away_s(self, deadline: float) -> float:
        """Return for how long this rank was away until a moment ago, or until after its deadline; 0 if it was there."""
        now, (since, until) = self.channel.now(), self._absence
        if until > min(now, deadline) - _GRACE_AT_DEADLINE_S:
            return now - since
        return now - deadline if now >= deadline + _GRACE_AT_DEADLINE_S else 0.0

    def _has_stopped(self, peer: int, deadline: float) -> bool:
        """Look for what a rank that is gone says: that it has not seen the end of this round, or has waited in vain.

        Else it has left in good order, or died, and this round may end without it.
        """
        words = self.channel.heard(peer, min(self.channel.now() + _LOOK_S, deadline))
        said = Said.read(words)
        return bool(words) and (said.ended < self.sequence or said.cause == LATE)

    def leave(self, cause: str) -> None:
        """Tell the others that this rank has stopped, without waiting for them to call."""
        if self.broken is not None:
            return
        until = self.channel.now() + _FLUSH_S
        # First, so that a signal handler that closes the group meanwhile, or raises, does not tell the others twice.
        self.broken = GroupError.closed()
        try:
            # Whoever leaves in good order may end its process next: what it has sent must be out of it.
            if cause == LEFT:
                self.channel.flush(until)
            self._leave_host()
        finally:
            self._ask(cause, (), (), lambda _: True, self.channel.now() + _GRACE_AT_THE_END_S, flush_until=until)

    def ended(
        self, cause: str, suspects: Collection[int], deadline: float, waiters: Collection[int] = ()
    ) -> GroupError:
        """Ask the other ranks whom they miss, and return the error that all of them raise."""
        if self.broken is not None:  # a signal handler or another thread has closed the group, and told why
            return self.broken
        self.broken = GroupError.closed()  # this rank may be interrupted while it asks
        self._leave_host()  # before it asks, so that who waits there answers
        away_s, now = self._away_s(deadline), self.channel.now()
        if away_s > AWAY_S and now >= deadline:
            # The others have spoken, or do so as this rank stops, if their deadlines are later.
            cause, lost, until = AWAY, suspects, now + _GRACE_S
        else:
            lost = self._all_lost(suspects, deadline) if cause == LOST else suspects
            # Ranks with one deadline notice it within milliseconds of each other: the grace behind it can be short.
            now = self.channel.now()
            until = min(now + _GRACE_S, max(now, deadline) + _GRACE_AT_DEADLINE_S)
        answers, is_heard = self._ask(cause, lost, waiters, have_answered, until, away_s)
        self.broken = error_of(answers, self.channel.rank)
        first = sorted(suspects or lost)
        if cause == LOST and not is_heard and self.channel.size > len({self.channel.rank, *first}):
            self.broken = PeerLostError.unexplained(first)  # it may be theirs who are lost in turn
        return self.broken

    def _all_lost(self, suspects: Collection[int], deadline: float) -> Collection[int]:
        """Return those whose connections broke, and whose do a little later: the ranks of a host end together.

        Whoever closes its connections because of others has said so before, and is not missed. Without suspects, a
        connection has ended this rank's wait elsewhere, perhaps late, and the others are waiting for its answer.
        """
        lost, now = set(suspects), self.channel.now()
        if suspects:
            lost.update(self._broken())
        until = min(now + _TOGETHER_S, deadline) if suspects else now
        while (transfer := self.channel.wait(until)) is not None:
            if transfer.error and not transfer.is_send:
                lost.add(transfer.peer)
        return lost

    def _ask(
        self,
        cause: str,
        suspects: Collection[int],
        waiters: Collection[int],
        is_enough: Enough,
        until: float,
        away_s: float = 0.0,
        flush_until: float = 0.0,
    ) -> tuple[dict[int, Said], bool]:
        """Return what all have said so far, and whether anybody could hear what this one says."""
        others = frozenset(waiters).difference(suspects)
        own = Said(cause, frozenset(suspects), self._ended, self._holds, others, away_s)
        try:
            told = self.channel.ask(own.encode(), is_enough, until)
            # What this rank says may lie behind what it has sent before, and it may do something else next.
            self.channel.flush(max(until, flush_until))
        finally:
            # Closed whatever the answers are: nothing can be sent any more.
            self.channel.close()
        return {self.channel.rank: own} | {rank: Said.read(words) for rank, words in told.items()}, bool(told)
