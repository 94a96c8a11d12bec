"""The seam between treefold and the engines of others, which carry bytes between the ranks of several hosts.

A new engine is one file with a subclass of ``Channel``. Nothing else imports an engine.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from treefold.backends import HostArray
from treefold.errors import GroupError

#: Tags below are of messages by which ranks meet, and are waited for beside everything else.
CONTROL_TAGS = 1
#: How long a rank settles at most, so that what the others wait for is out; who has stopped takes nothing.
SETTLE_S = 1.0


@dataclass(frozen=True, slots=True)
class Limits:
    """What an engine bears.

    ``tags`` count from 0 to one below it; a message has ``message_bytes`` at most, and those of about ``chunk_bytes``
    go through quickest. ``rails``: over how many network ports of a host messages spread, by ``tag % rails``.
    ``is_death_fatal``: whether the engine ends all ranks when one dies.
    """

    tags: int
    message_bytes: int
    chunk_bytes: int = 1 << 20
    rails: int = 1
    is_death_fatal: bool = False


@dataclass(slots=True, eq=False)
class Transfer:
    """A message under way; ``error`` says, in words, why it never arrives."""

    peer: int
    tag: int
    buffer: HostArray
    is_send: bool = False
    error: str = ""
    #: What the engine knows it by.
    handle: Any = field(default=None, repr=False)


class Waiting(Protocol):
    """Transfers to wait for, as long as there are any."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Transfer]: ...


class Channel(abc.ABC):
    """An engine's messages between one rank and the others. One thread uses it.

    Messages of one sender, receiver and tag arrive in the order of their sending. A buffer is a one-dimensional array
    of bytes, and stays as it is until its transfer is done or the channel is closed. What arrives may be shorter than
    the buffer that takes it, and never longer.
    """

    rank: int
    size: int
    limits: Limits

    @abc.abstractmethod
    def send(self, peer: int, tag: int, buffer: HostArray) -> Transfer:
        """Begin to send, and return at once, with an error if the peer is known to have ended or stopped."""

    @abc.abstractmethod
    def receive(self, peer: int, tag: int, buffer: HostArray) -> Transfer:
        """Begin to receive, and return at once."""

    @abc.abstractmethod
    def wait(self, deadline: float) -> Transfer | None:
        """Return a transfer that is done or has failed, each once; None at the deadline, a moment of ``now``.

        What one peer sends on one rail, above or below ``CONTROL_TAGS``, may be returned in the order in which its
        receives have begun. Sends that went well, or failed at once, need not be returned. A failed transfer's peer has
        ended or stopped using the channel. Signal handlers run at least every 20 ms.
        """

    @abc.abstractmethod
    def settle(self, deadline: float) -> None:
        """Hear that all ranks have told a round: what was sent before the last one has arrived, and may be forgotten.

        Returns once what was sent in this one is as far as the engine needs the caller for it, or at the deadline.
        """

    def meanwhile(self, work: Callable[[], object], give_up: Callable[[], object]) -> None:  # noqa: ARG002 - see gloo
        """Do something else that waits, while transfers go on.

        ``give_up`` is called if one of them fails meanwhile, by another thread: it makes the work end.
        """
        work()

    @abc.abstractmethod
    def flush(self, deadline: float) -> None:
        """Return when what was sent, and over messages told, is out of this process, or at the deadline."""

    @abc.abstractmethod
    def now(self) -> float:
        """Return the engine's time in seconds, which never goes back."""

    @abc.abstractmethod
    def words(self, deadline: float) -> Mapping[int, bytes] | None:
        """Return the words of the other ranks that have stopped; None if the engine cannot tell.

        It reads once, and waits for that until the deadline. A rank whose transfers have failed because it has stopped
        has left its word before, if the engine took it in time. One that has closed without ``stop`` may have an empty
        word.
        """

    @abc.abstractmethod
    def stop(self, word: bytes, deadline: float) -> None:
        """Leave a word for the other ranks, and stop using the channel.

        It waits until the deadline for the engine to take the word. Then the ranks that wait on this one are woken, by
        transfers that fail. It is called once, and nothing can be sent after it.
        """

    def without(self, ranks: Collection[int], deadline: float) -> Channel:  # noqa: ARG002 - for engines with a store
        """Return a channel between all ranks but these, whose own numbers close up; all others call it alike.

        For engines with a store, which decides once: of two parts that leave each other out, one goes on at most. This
        channel may be closed. If some do not come, it may be called again, with those left out as well.

        Raises:
            GroupError: others go on without this one, it cannot be decided, or the engine has no store.

        """
        raise GroupError.no_store()

    @abc.abstractmethod
    def close(self) -> None:
        """Give the engine back what is its own; nothing is under way, or ``stop`` was called. Waits for nobody."""
