"""What knows the ranks of a job, before there is a group: a store of PyTorch's, or an MPI communicator."""

from __future__ import annotations

import abc
import contextlib
import time
from datetime import timedelta
from typing import Any

import numpy as np

from treefold.engines.channel import Channel, Transfer
from treefold.errors import ConnectError

_WORDS_BYTES = 4096


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

    @abc.abstractmethod
    def close(self) -> None:
        """Give back what is not needed without a channel."""


class StoreRoster(Roster):
    """Ranks that share one of PyTorch's stores, of which they use nothing but keys that begin with ``name``."""

    def __init__(self, store: Any, rank: int, size: int, name: str) -> None:
        """Use a store that outlives the roster."""
        self.rank, self.size = rank, size
        self._store, self._name = store, name
        self._rounds = 0

    def exchange(self, said: bytes, deadline: float) -> list[bytes]:
        """Leave words in the store, and wait for those of all others."""
        began = time.monotonic()
        self._rounds += 1
        keys = [f"{self._name}/{self._rounds}/{rank}" for rank in range(self.size)]
        self._store.set(keys[self.rank], said)
        with contextlib.suppress(RuntimeError):  # PyTorch's errors of stores
            self._store.wait(keys, timedelta(seconds=max(deadline - time.monotonic(), 1e-3)))
            return [self._store.get(key) for key in keys]
        missing = [rank for rank, key in enumerate(keys) if not self._has(key)]
        raise ConnectError.late(missing or range(self.size), deadline - began)

    def open_channel(self, deadline: float) -> Channel:
        """Connect by gloo."""
        from treefold.engines.gloo import GlooChannel  # noqa: PLC0415 - PyTorch, which the user has chosen

        seconds = max(deadline - time.monotonic(), 1e-3)
        return GlooChannel(self._store, self.rank, self.size, f"{self._name}/channel", seconds)

    def close(self) -> None:
        """Leave the keys: others may still read them."""

    def _has(self, key: str) -> bool:
        with contextlib.suppress(RuntimeError):
            return bool(self._store.check([key]))
        return False


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
    from treefold.engines.mpi import MpiChannel  # noqa: PLC0415 - mpi4py, which the user has chosen

    return ChannelRoster(MpiChannel(communicator.Dup()))
