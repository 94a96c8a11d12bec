"""What knows the ranks of a job, before there is a group: a store of PyTorch's, or an MPI communicator."""

from __future__ import annotations

import abc
import socket
import time
from typing import Any

import numpy as np

from treefold.engines.interface import Channel, Transfer
from treefold.engines.stores import asked, interfaces
from treefold.errors import ConnectError

_WORDS_BYTES = 4096
_POLL_S = 0.01


class Roster(abc.ABC):
    """Ranks that can tell each other a few words, and open a channel."""

    rank: int
    size: int

    @abc.abstractmethod
    def exchange(self, said: bytes, deadline: float) -> list[bytes]:
        """Return what each rank says, by rank; a few kilobytes at most.

        Raises:
            ConnectError: some have said nothing by the deadline, a moment of the monotonic clock.

        """

    @abc.abstractmethod
    def open_channel(self, deadline: float) -> Channel:
        """Return a channel between all ranks, which all open it.

        Raises:
            ConnectError: some have not, by the deadline.

        """

    def missing_interfaces(self) -> list[str]:
        """Return the network interfaces that the engine is told to use, and that this host does not have."""
        return []

    @abc.abstractmethod
    def close(self) -> None:
        """Give back what is not needed without a channel."""


class StoreRoster(Roster):
    """Ranks that share one of PyTorch's stores, of which they use nothing but keys that begin with ``job``.

    Ranks of a job connect again and again, and some may have tried in vain meanwhile. So each attempt has a number, and
    a rank that waits for others joins the newest attempt that any of them has begun.
    """

    def __init__(self, store: Any, rank: int, size: int, job: str) -> None:
        """Begin an attempt on a store that outlives the roster."""
        self.rank, self.size = rank, size
        self._store, self._job = store, job
        self._attempt = _attempts[job] = _attempts.get(job, 0) + 1
        self._rounds = 0

    def exchange(self, said: bytes, deadline: float) -> list[bytes]:
        """Leave words in the store, and wait for those of all others."""
        began = time.monotonic()
        self._rounds += 1
        told = asked(lambda: self._told(said, deadline), deadline)
        missing = [rank for rank, one in enumerate(told) if one is None]
        if missing:
            raise ConnectError.late(missing, deadline - began)
        return [one for one in told if one is not None]

    def open_channel(self, deadline: float) -> Channel:
        """Connect by gloo."""
        from treefold.engines.gloo import GlooChannel  # noqa: PLC0415 - PyTorch, which the user has chosen

        seconds = max(deadline - time.monotonic(), 1e-3)
        return GlooChannel(self._store, self.rank, self.size, f"{self._job}/{self._attempt}/channel", seconds)

    def missing_interfaces(self) -> list[str]:
        """Return what gloo will not find."""
        return sorted({*interfaces()}.difference(name for _, name in socket.if_nameindex()))

    def close(self) -> None:
        """Leave the keys: others may still read them."""

    def _told(self, said: bytes, deadline: float) -> list[bytes | None]:
        """Return what each rank has left in this round; None for those that have left nothing by the deadline."""
        self._store.set(self._key(self.rank), said)
        while True:
            # Read before the keys: whoever has begun a newer attempt after this one went well has left all of them.
            newest = self._newest() if self._rounds == 1 else self._attempt
            keys = [self._key(rank) for rank in range(self.size)]
            if self._store.check(keys):
                return [self._store.get(key) for key in keys]
            if newest > self._attempt and time.monotonic() < deadline:
                self._attempt = _attempts[self._job] = newest
                self._store.set(self._key(self.rank), said)
            elif time.monotonic() >= deadline:
                told = [self._store.get(key) if self._store.check([key]) else None for key in keys]
                if None in told:
                    self._store.delete_key(keys[self.rank])  # nobody is to join an attempt that was given up
                return told
            else:
                time.sleep(_POLL_S)

    def _key(self, rank: int) -> str:
        return f"{self._job}/{self._attempt}/{self._rounds}/{rank}"

    def _newest(self) -> int:
        """Return the number of the newest attempt that any rank has begun."""
        name, own, told = f"{self._job}/newest", self._attempt, ""
        while True:
            # Compare and set, until it holds: two ranks that begin attempts at once must not both be the newest.
            newest = int(self._store.compare_set(name, told, str(own)))
            if newest >= own:
                return newest
            told = str(newest)


#: The attempt to connect that this process has begun last, by job.
_attempts: dict[str, int] = {}


class ChannelRoster(Roster):
    """The ranks that a channel joins."""

    def __init__(self, channel: Channel) -> None:
        """Use a channel, alone until it is a group's."""
        self._channel = channel
        self.rank, self.size = channel.rank, channel.size

    def exchange(self, said: bytes, deadline: float) -> list[bytes]:
        """Send words to all others."""
        began = time.monotonic()
        words = np.zeros((self.size, _WORDS_BYTES), np.uint8)
        words[self.rank, : len(said)] = np.frombuffer(said, np.uint8)
        waiting = set[Transfer]()
        for peer in range(self.size):
            if peer != self.rank:
                waiting.add(self._channel.receive(peer, 0, words[peer]))
                self._channel.send(peer, 0, words[self.rank])
        while waiting:
            done = self._channel.wait(deadline - began + self._channel.now())
            if done is None or done.error:
                raise ConnectError.late(sorted(one.peer for one in waiting), deadline - began)
            waiting.discard(done)
        return [row.tobytes().rstrip(b"\0") for row in words]

    def open_channel(self, deadline: float) -> Channel:  # noqa: ARG002 - it is open
        """Return the channel."""
        return self._channel

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()


def of_communicator(communicator: Any) -> Roster:
    """Return the ranks of an mpi4py communicator, which is duplicated, so that the user's messages are not met."""
    from treefold.engines.mpi import duplicate  # noqa: PLC0415 - mpi4py, which the user has chosen

    return ChannelRoster(duplicate(communicator))
