"""The interface of engines: other projects' libraries that carry bytes between the ranks of several hosts.

A new engine is one file with a subclass of ``Channel``. Nothing else imports an engine.
"""

from __future__ import annotations

import abc
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from treefold.backends import HostArray
from treefold.errors import GroupError

#: Smaller tags are those of control messages, which are waited for independently of all others.
CONTROL_TAGS = 1


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of an engine.

    Args:
        tags: The number of tags; they count from 0.
        message_bytes: The most bytes in a message.
        chunk_bytes: The size of the messages that the engine carries quickest.
        rails: The number of network ports of a host over which messages spread, by ``tag % rails``.
        needs_calls: Whether messages move only while this process is within a call of the channel.

    """

    tags: int
    message_bytes: int
    chunk_bytes: int = 1 << 20
    rails: int = 1
    needs_calls: bool = False


@dataclass(slots=True, eq=False)
class Transfer:
    """A message under way. ``error``: why it never arrives, in words; empty while it still can."""

    peer: int
    tag: int
    buffer: HostArray
    is_send: bool = False
    error: str = ""
    #: The engine's own object for it.
    handle: Any = field(default=None, repr=False)


class Transfers(Protocol):
    """Transfers that are waited for, until none is left."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Transfer]: ...


class Channel(abc.ABC):
    """An engine's messages between one rank and the others. One thread uses it.

    Messages of one sender, receiver and tag arrive in the order of their sending. A buffer is a flat array of bytes,
    and stays unchanged until its transfer is done or the channel is closed. A message may be shorter than the buffer
    that receives it, but never longer.
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

        Two kinds of messages are independent: those with tags below ``CONTROL_TAGS``, and, on each rail, the others.
        Within a kind, receives from one peer may be returned in the order in which they began. Sends that succeeded, or
        failed at once, need not be returned. The peer of a failed transfer has ended or stopped using the channel.
        Signal handlers run at least every 20 ms.
        """

    @abc.abstractmethod
    def flush(self, deadline: float) -> None:
        """Return when no send needs this process's calls or its memory any more, or at the deadline."""

    @abc.abstractmethod
    def now(self) -> float:
        """Return the engine's time in seconds; it never goes back."""

    @abc.abstractmethod
    def stop(self, word: bytes, deadline: float) -> None:
        """Stop using the channel. This is called once, and nothing is sent after it.

        An engine with a store first leaves the word there, and waits for that until the deadline. One with connections
        then breaks them, so that the transfers of others with this rank fail, as they do when a process dies.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Release the engine's own resources, without waiting. Nothing is under way, or ``stop`` was called."""

    def read_words(self, deadline: float) -> Mapping[int, bytes] | None:  # noqa: ARG002 - for engines with a store
        """Return the words that other ranks have left in the store when they stopped; None if it cannot be read.

        The store is read once, and its answer is waited for until the deadline.
        """
        return None

    def without(self, ranks: Collection[int], deadline: float) -> Channel:  # noqa: ARG002 - for engines with a store
        """Return a channel between all ranks but these, renumbered without gaps; all ranks that stay call it alike.

        Only engines with a store can: the store decides once, so that of two sets of ranks that leave each other out,
        at most one goes on. This channel may be closed.

        Raises:
            GroupError: The others go on without this rank, some do not come, or the engine has no store.

        """
        raise GroupError(
            "Group.without needs an engine with a store, as gloo has one. Over MPI, connect again on a communicator of "
            "the ranks that are left: "
            "`treefold.connect(communicator.Create_group(communicator.group.Excl(error.ranks)))`."
        )
