"""Rounds: every rank tells all others one frame. What fails becomes the group's error, on all alike."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from treefold.backends import HostArray
from treefold.engines.channel import Channel, Transfer, Waiting
from treefold.errors import DeadlineError, GroupError, PeerLostError

#: Magic, sequence, kind, whether the call is refused, replicas, the plan's number, bytes of the words, of the payload.
_HEAD = struct.Struct("<4sQ24s??xxIQII")
_MAGIC = b"tfd1"
_MOST_WORDS = 400
#: What a frame has room for beside its head; longer payloads follow it.
FRAME_ROOM = 16384
_FRAME_BYTES = _HEAD.size + _MOST_WORDS + FRAME_ROOM
_FRAME, _REST = range(2)
#: The tags that rounds use; data has those from here on.
ROUND_TAGS = 2
_LOST, _LATE, _LEFT = "lost", "late", "left"
#: How long ranks wait for the words of one who does not answer: not long after a deadline, which is late enough.
_GRACE_S = {_LOST: 0.2, _LATE: 0.08}
_GRACE_AT_THE_END_S = 0.05
_FLUSH_S = 1.0
_WARN_AFTER_S = 30.0


class Frame(NamedTuple):
    """What a rank says in a round."""

    kind: bytes
    words: str
    payload: bytes = b""
    replicas: int = 0
    number: int = 0
    is_refused: bool = False
    #: Whether leaves have different numbers of replicas, at most so many.
    is_mixed: bool = False


class Said(NamedTuple):
    """What a rank says when it stops: why, whom it waits for, and the last round that it has seen the end of."""

    cause: str
    suspects: frozenset[int]
    ended: int
    #: Of those that it waits for, the others: they may themselves wait.
    waiters: frozenset[int] = frozenset()

    def encode(self) -> bytes:
        """Return it as others read it."""
        return json.dumps([self.cause, sorted(self.suspects), self.ended, sorted(self.waiters)]).encode()

    @staticmethod
    def read(said: bytes) -> Said:
        """Read what another rank has said."""
        cause, suspects, ended, waiters = json.loads(said)
        return Said(str(cause), frozenset(map(int, suspects)), int(ended), frozenset(map(int, waiters)))


class Rounds:
    """The rounds of one group, one after the other. One call has one or several of them."""

    def __init__(self, channel: Channel) -> None:
        """Use a channel, alone."""
        self.channel = channel
        self.sequence = 0
        self.broken: GroupError | None = None
        self._frames = np.empty((channel.size, _FRAME_BYTES), np.uint8)

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
        with self.failing():
            self.sequence += 1
            own = np.frombuffer(self._encoded(frame), np.uint8).copy()
            waiting = {self.channel.receive(peer, _FRAME, self._frames[peer]) for peer in self.peers}
            for peer in self.peers:
                self.channel.send(peer, _FRAME, own[:_FRAME_BYTES])
            self.wait_for(waiting, deadline, warn)
            said = {peer: self._decoded(self._frames[peer]) for peer in self.peers}
            long = {peer: length for peer, (_, length) in said.items() if length > FRAME_ROOM}
            rests = {peer: np.empty(length - FRAME_ROOM, np.uint8) for peer, length in long.items()}
            waiting = {self.channel.receive(peer, _REST, rest) for peer, rest in rests.items()}
            if len(frame.payload) > FRAME_ROOM:
                rest = np.frombuffer(frame.payload, np.uint8)[FRAME_ROOM:].copy()
                for peer in self.peers:
                    self.channel.send(peer, _REST, rest)
            self.wait_for(waiting, deadline, warn)
            frames = {peer: one for peer, (one, _) in said.items()}
            for peer, rest in rests.items():
                frames[peer] = frames[peer]._replace(payload=frames[peer].payload + rest.tobytes())
            return [frame if rank == self.channel.rank else frames[rank] for rank in range(self.channel.size)]

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
        warn_at = self.channel.now() + _WARN_AFTER_S
        while waiting:
            transfer = self.channel.wait(min(deadline, warn_at))
            if transfer is not None and transfer.is_send:
                continue  # one that fails needs nothing more, or is missed by what it does not send
            if transfer is not None and transfer.error:
                raise self.ended(_LOST, {transfer.peer})
            if transfer is not None:
                yield transfer
            elif self.channel.now() >= deadline:
                raise self.ended(
                    _LATE, {one.peer for one in waiting if not one.is_derived}, {one.peer for one in waiting}
                )
            else:
                warn(sorted({one.peer for one in waiting}))
                warn_at = deadline

    def failing(self) -> Rounds:
        """Tell the others, who wait, if what stands within raises."""
        return self

    def __enter__(self) -> None:
        """Begin what may fail."""
        if self.broken is not None:
            raise self.broken

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """Tell the others why this rank stops, unless they know."""
        if error is not None and self.broken is None:
            cause = "failed" if isinstance(error, Exception) else "interrupted"
            self.leave(cause)

    def leave(self, cause: str) -> None:
        """Tell the others that this rank has stopped, waiting for nobody."""
        if self.broken is None:
            self.broken = GroupError.closed()
            if cause == _LEFT:
                self.channel.flush(self.channel.now() + _FLUSH_S)
            said = Said(cause, frozenset(), self.sequence).encode()
            self.channel.ask(said, lambda _: True, self.channel.now() + _GRACE_AT_THE_END_S)
            self.channel.close()

    def ended(self, cause: str, suspects: Collection[int], waiters: Collection[int] = ()) -> GroupError:
        """Ask the other ranks whom they miss, and return the error that all of them raise."""
        said = Said(cause, frozenset(suspects), self.sequence - 1, frozenset(waiters).difference(suspects))
        told = self.channel.ask(said.encode(), _have_answered, self.channel.now() + _GRACE_S[cause])
        answers = {rank: Said.read(words) for rank, words in told.items()}
        self.broken = blamed(answers, self.sequence)
        self.channel.close()
        return self.broken

    def _encoded(self, frame: Frame) -> bytes:
        words = frame.words.encode(errors="replace")[:_MOST_WORDS]
        head = _HEAD.pack(
            _MAGIC,
            self.sequence,
            frame.kind,
            frame.is_refused,
            frame.is_mixed,
            frame.replicas,
            frame.number,
            len(words),
            len(frame.payload),
        )
        return head + words + frame.payload[:FRAME_ROOM]

    def _decoded(self, buffer: HostArray) -> tuple[Frame, int]:
        """Return a rank's frame, with what stands in it of the payload, and how long that is."""
        head = _HEAD.unpack(buffer[: _HEAD.size].tobytes())
        magic, sequence, kind, is_refused, is_mixed, replicas, number, words_bytes, payload_bytes = head
        if magic != _MAGIC or sequence != self.sequence or words_bytes > _MOST_WORDS:
            raise GroupError.garbled()
        start = _HEAD.size + words_bytes
        words = buffer[_HEAD.size : start].tobytes().decode(errors="replace")
        payload = buffer[start : start + min(payload_bytes, FRAME_ROOM)].tobytes()
        return Frame(kind, words, payload, replicas, number, is_refused, is_mixed), payload_bytes


def _have_answered(told: Mapping[int, bytes]) -> bool:
    """Tell whether all have answered whom those who have answered wait for."""
    answers = [Said.read(words) for words in told.values()]
    return told.keys() >= frozenset().union(*(said.suspects | said.waiters for said in answers))


def blamed(answers: Mapping[int, Said], sequence: int) -> GroupError:
    """Return the error of a call, from what the ranks that are left have said.

    Those who say themselves that they have stopped are to blame; else those whom others wait for and who say nothing.
    A rank that waits for a rank that waits is blameless.
    """
    holders = sorted(rank for rank, said in answers.items() if said.ended >= sequence)
    for cause in ("interrupted", "failed", "left"):
        stopped = sorted(rank for rank, said in answers.items() if said.cause == cause)
        if stopped:
            return PeerLostError.between_hosts(cause, stopped, holders)
    suspects = frozenset().union(*(said.suspects for said in answers.values()))
    waiters = frozenset().union(*(said.waiters for said in answers.values()))
    missing = sorted(suspects.difference(answers) or waiters.difference(answers) or suspects or waiters)
    if any(said.cause == "late" for said in answers.values()):
        return DeadlineError.between_hosts(missing, holders)
    return PeerLostError.between_hosts("lost", missing, holders)
