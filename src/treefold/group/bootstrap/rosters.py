"""Rosters know the ranks of a job before there is a group: by a store of PyTorch's, or a channel between all ranks."""

from __future__ import annotations

import abc
import time
from typing import Any

from treefold.engines.interface import Channel
from treefold.engines.stores import Meeting, asked
from treefold.engines.times import GRACE_S
from treefold.errors import ConnectError, DeadlineError, PeerLostError
from treefold.group.protocol import CONNECT, Frame
from treefold.group.transport.failures import Rounds


class Roster(abc.ABC):
    """Ranks that can tell each other a few words, and open a channel."""

    rank: int
    size: int
    #: When this rank began to connect, by the monotonic clock; errors tell the seconds since.
    began: float

    @abc.abstractmethod
    def exchange(self, said: bytes, deadline: float) -> list[bytes]:
        """Return what each rank says, by rank; a few kilobytes at most.

        Raises:
            ConnectError: some have said nothing by the deadline, a moment of the monotonic clock, or have given up.

        """

    @abc.abstractmethod
    def open(self, deadline: float) -> Rounds:
        """Return rounds over a channel between all ranks, once all have opened it.

        Raises:
            ConnectError: some have not by the deadline, or have given up.

        """

    @abc.abstractmethod
    def close(self) -> None:
        """Give back what is not needed without a channel."""

    @abc.abstractmethod
    def give_up(self, error: BaseException) -> None:
        """Give back everything, and tell ranks that still wait why this one does not go on."""


class StoreRoster(Roster):
    """Ranks that share one of PyTorch's stores, of which they use nothing but keys that begin with ``job``.

    Ranks of a job connect again and again, and some are new processes. So attempts have numbers. A rank joins the first
    attempt that is not over, and that no process of its number has joined: one that it finds there itself has ended.
    """

    def __init__(self, store: Any, rank: int, size: int, job: str) -> None:
        """Use a store that outlives the roster."""
        if rank >= size:
            raise ConnectError(
                f"The group did not form: rank {rank} is not one of {size} ranks, which count from 0 to {size - 1}. "
                "Start every rank with its own number, and with the number of all."
            ).blaming(rank)
        self.rank, self.size = rank, size
        self._store, self._job = store, job
        self.began = time.monotonic()
        self._meeting: Meeting | None = None
        self._steps = 0

    @property
    def attempt(self) -> str:
        """The attempt to connect that this rank has joined, as keys in the store begin with it."""
        assert self._meeting is not None  # noqa: S101 - they have exchanged words
        return self._meeting.name

    def exchange(self, said: bytes, deadline: float) -> list[bytes]:
        """Leave words in the store, and wait for those of all others."""
        if self._meeting is None:
            return self._come(said, deadline)
        self._steps += 1
        return self._meeting.exchange(f"step {self._steps}", said, deadline)

    def open(self, deadline: float) -> Rounds:
        """Connect by gloo, once all have come so far: gloo does not say which rank is missing."""
        from treefold.engines.gloo import GlooChannel  # noqa: PLC0415 - PyTorch, which the user has chosen

        self.exchange(b"", deadline)
        assert self._meeting is not None  # noqa: S101 - they have exchanged words
        return Rounds(GlooChannel(self._meeting, deadline))

    def close(self) -> None:
        """Leave the keys: others may still read them."""

    def give_up(self, error: BaseException) -> None:
        """Leave the reason in the store."""
        if self._meeting is not None:
            self._meeting.give_up(error)

    def _come(self, said: bytes, deadline: float) -> list[bytes]:
        """Join an attempt, and return what each rank says once all have come."""
        while True:
            self._meeting = asked(self._joined, deadline + GRACE_S)
            try:
                # First without words: all may be there, some of them as processes that have ended.
                self._meeting.exchange("here", b"", deadline)
                return self._meeting.exchange("words", said, deadline)
            except ConnectError as error:
                # A process has come in place of one that has ended, and waits in the next attempt.
                if not error.ranks or str(error) != str(ConnectError.replaced(error.ranks[0])):
                    raise

    def _joined(self) -> Meeting:
        """Return the first attempt for this process."""
        first = f"{self._job}/first"
        number = int(self._store.get(first)) if self._store.check([first]) else 0
        meeting = Meeting(self._store, f"{self._job}/{number}", self.rank, self.size, self.began)
        while meeting.is_past():
            meeting.end(ConnectError.replaced(self.rank))
            number += 1
            meeting = meeting._replace(name=f"{self._job}/{number}")
        self._store.set(first, str(number))
        return meeting


class ChannelRoster(Roster):
    """The ranks that a channel joins."""

    def __init__(self, channel: Channel) -> None:
        """Use a channel, alone until it is a group's."""
        self._channel, self._rounds = channel, Rounds(channel)
        self.rank, self.size = channel.rank, channel.size
        self.began = time.monotonic()

    def exchange(self, said: bytes, deadline: float) -> list[bytes]:
        """Tell all others, in a round as those of a group's calls."""
        until = deadline - time.monotonic() + self._channel.now()
        try:
            frames = self._rounds.tell(Frame(CONNECT, "connect", said), until, lambda _: None)
        except DeadlineError as error:
            seconds = time.monotonic() - self.began
            raise (
                ConnectError.late(error.ranks, seconds) if error.ranks else ConnectError.out_of_time(self.rank, seconds)
            ) from None
        except PeerLostError as error:
            raise ConnectError.given_up(error.ranks) from None
        return [frame.payload for frame in frames]

    def open(self, deadline: float) -> Rounds:
        """Return the rounds, once all have come so far."""
        self.exchange(b"", deadline)
        return self._rounds

    def close(self) -> None:
        """Close the channel."""
        self._rounds.leave("left")

    def give_up(self, error: BaseException) -> None:
        """Tell the others by the channel, and close it."""
        self._rounds.leave("interrupted" if isinstance(error, KeyboardInterrupt) else "failed")
