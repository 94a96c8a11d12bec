"""The seam between treefold and the engines of others, which carry bytes between the ranks of several hosts.

A new engine is one file with a subclass of ``Channel``. Nothing else imports an engine.
"""

from __future__ import annotations

import abc
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from treefold.backends import HostArray
from treefold.errors import GroupError

#: Tags below are of messages by which ranks meet, and are waited for beside everything else.
CONTROL_TAGS = 1


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of an engine.

    ``tags`` count from 0 to one below it; a message has ``message_bytes`` at most. Those of about ``chunk_bytes``
    go through quickest. ``rails``: over how many network ports of a host messages spread, by ``tag % rails``.
    ``needs_calls``: whether messages move only while this process is within a call of the channel.
    """

    tags: int
    message_bytes: int
    chunk_bytes: int = 1 << 20
    rails: int = 1
    needs_calls: bool = False


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


class Transfers(Protocol):
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
    def flush(self, deadline: float) -> None:
        """Return when what was sent needs neither this process's calls nor its memory any more, or at the deadline."""

    @abc.abstractmethod
    def now(self) -> float:
        """Return the engine's time in seconds, which never goes back."""

    @abc.abstractmethod
    def stop(self, word: bytes, deadline: float) -> None:
        """Stop using the channel; nothing can be sent after it, and it is called once.

        An engine with a store leaves the word there first, and waits until the deadline for that. One with connections
        breaks them then, so that the transfers of others with this rank fail, as they do when a process dies.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Give the engine back what is its own; nothing is under way, or ``stop`` was called. Waits for nobody."""

    def read_words(self, deadline: float) -> Mapping[int, bytes] | None:  # noqa: ARG002 - for engines with a store
        """Return the words that other ranks have left in the store when they stopped; None if it cannot be read.

        It reads once, and waits for that until the deadline.
        """
        return None

    def without(self, ranks: Collection[int], deadline: float) -> Channel:  # noqa: ARG002 - for engines with a store
        """Return a channel between all ranks but these, with numbers that close up; all others call it alike.

        For engines with a store, which decides once: of two parts that leave each other out, one goes on at most. This
        channel may be closed.

        Raises:
            GroupError: others go on without this one, some do not come, or the engine has no store.

        """
        raise GroupError(
            "Group.without needs an engine with a store, as gloo has one. Over MPI, connect again on a communicator of "
            "the ranks that are left: "
            "`treefold.connect(communicator.Create_group(communicator.group.Excl(error.ranks)))`."
        )
