"""What knows the ranks of a job, before there is a group: a store of PyTorch's, or an MPI communicator."""

from __future__ import annotations

import abc
import contextlib
import json
import socket
import threading
import time
from typing import Any

import numpy as np

from treefold.engines.interface import Channel, Transfer
from treefold.engines.stores import asked, interfaces
from treefold.errors import ConnectError

_WORDS_BYTES = 4096
_POLL_S = 0.01
#: How long a rank that gives up takes to tell the others, or to hear why one of them has.
_TELL_S = 0.2
#: What stands in place of a rank's words once it has given the attempt up.
_GIVEN_UP = b"given up"


class Roster(abc.ABC):
    """Ranks that can tell each other a few words, and open a channel."""

    rank: int
    size: int

    @abc.abstractmethod
    def exchange(self, said: bytes, deadline: float) -> list[bytes]:
        """Return what each rank says, by rank; a few kilobytes at most.

        Raises:
            ConnectError: some have said nothing by the deadline, a moment of the monotonic clock, or have given up.

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

    @abc.abstractmethod
    def give_up(self, error: BaseException) -> None:
        """Give back everything, and tell ranks that still wait why this one does not go on."""


class StoreRoster(Roster):
    """Ranks that share one of PyTorch's stores, of which they use nothing but keys that begin with ``job``.

    Ranks of a job connect again and again, some have tried in vain meanwhile, and some are new processes. So each
    attempt has a number above all that the store knows, and a rank that waits for others joins the newest attempt that
    any of them has begun.
    """

    def __init__(self, store: Any, rank: int, size: int, job: str) -> None:
        """Use a store that outlives the roster."""
        self.rank, self.size = rank, size
        self._store, self._job = store, job
        self._attempt = self._first = self._rounds = 0
        self._why_over, self._over_before = b"", ""
        self._is_deaf = self._may_come_again = False

    def exchange(self, said: bytes, deadline: float) -> list[bytes]:
        """Leave words in the store, and wait for those of all others."""
        began = time.monotonic()
        self._rounds += 1
        self._may_come_again = self._rounds == 1
        try:
            told = asked(lambda is_over: self._told(said, deadline, is_over), deadline)
        except ConnectError:
            self._is_deaf = True
            raise
        if self._why_over:
            raise _told_why(self._why_over)
        missing = [rank for rank, one in enumerate(told) if one is None]
        if missing:
            raise ConnectError.late(missing, deadline - began)
        if _GIVEN_UP in told:
            raise ConnectError.given_up([rank for rank, one in enumerate(told) if one == _GIVEN_UP])
        self._may_come_again = False
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

    def give_up(self, error: BaseException) -> None:
        """Leave the reason in the store, unless another rank has left its own, or may still join a newer attempt."""
        if self._attempt and not self._is_deaf and not self._may_come_again:
            with contextlib.suppress(ConnectError):
                asked(lambda _: self._ended_with(_why(self.rank, error)), time.monotonic() + _TELL_S)

    def _told(self, said: bytes, deadline: float, is_over: threading.Event) -> list[bytes | None]:
        """Return what each rank has left in this round; None for those that have left nothing by the deadline."""
        if not self._attempt and self._is_refused():
            return []
        if not is_over.is_set():
            self._store.set(self._key(self.rank), said)
        told: list[bytes | None] = [None]
        while not is_over.is_set():
            # Read before the keys: whoever has begun a newer attempt after this one went well has left all of them.
            newest = self._newest() if self._rounds == 1 else self._attempt
            is_late = time.monotonic() >= deadline
            keys = [self._key(rank) for rank in range(self.size)]
            if is_late or self._store.check(keys):
                told = [self._store.get(key) if self._store.check([key]) else None for key in keys]
                if is_late or not {None, _GIVEN_UP}.intersection(told):
                    break
            over = next((key for key in (self._over, self._over_before) if key and self._store.check([key])), "")
            if over:
                self._why_over = self._store.get(over)
                break
            if newest > self._attempt and not is_over.is_set():
                self._attempt = newest
                self._store.set(self._key(self.rank), said)
            else:
                time.sleep(_POLL_S)
        if self._rounds == 1 and {None, _GIVEN_UP}.intersection(told):
            # Nobody is to go on with an attempt that this rank has given up. Compared, in case the key is not its own.
            self._store.compare_set(self._key(self.rank), said.decode(), _GIVEN_UP.decode())
            self._store.set(self._last(self.rank), str(self._attempt))
            told = [_GIVEN_UP if one is None and self._has_left(rank) else one for rank, one in enumerate(told)]
        return told

    def _ended_with(self, why: bytes) -> bytes:
        """Let all ranks of the attempt know why it is over; return the reason, which may be another rank's."""
        found: bytes = self._store.compare_set(self._over, "", why.decode())
        newest = self._newest() if self._rounds == 1 else self._attempt
        if newest > self._attempt:
            # Ranks that do not fit together do not in a newer attempt, which some may have begun meanwhile.
            self._attempt = newest
            self._store.compare_set(self._over, "", why.decode())
        return found

    def _has_left(self, rank: int) -> bool:
        """Tell whether a rank has given up an attempt since this one has begun its first."""
        key = self._last(rank)
        return self._store.check([key]) and int(self._store.get(key)) >= self._first

    def _is_refused(self) -> bool:
        """Begin a new attempt, unless there is a reason not to, which a rank has left in the newest."""
        name = f"{self._job}/newest"
        self._attempt = int(self._store.get(name)) if self._store.check([name]) else 0
        key = self._key(self.rank)
        if self.rank >= self.size:
            self._attempt += 1
            self._why_over = self._ended_with(_why(self.rank, ConnectError.rank_too_high(self.rank, self.size)))
        elif self._store.check([self._over]) and not self._store.check([key]):
            self._why_over = self._store.get(self._over)
            self._store.set(key, _GIVEN_UP)  # told once: next time it begins a newer one
        else:
            # Others may end that one for a reason a moment later.
            self._over_before = "" if self._store.check([key]) else self._over
            # Above the newest, so that the attempt has no key of this rank already, of whatever process.
            self._attempt += 1
        self._first = self._attempt
        return bool(self._why_over)

    def _key(self, rank: int) -> str:
        return f"{self._job}/{self._attempt}/{self._rounds}/{rank}"

    def _last(self, rank: int) -> str:
        """Return the key of the number of the attempt that a rank has given up last."""
        return f"{self._job}/given up/{rank}"

    @property
    def _over(self) -> str:
        """The key of the reason why the attempt is over."""
        return f"{self._job}/{self._attempt}/over"

    def _newest(self) -> int:
        """Return the number of the newest attempt that any rank has begun."""
        name, own, told = f"{self._job}/newest", self._attempt, ""
        while True:
            # Compare and set, until it holds: two ranks that begin attempts at once must not both be the newest.
            newest = int(self._store.compare_set(name, told, str(own)))
            if newest >= own:
                return newest
            told = str(newest)


class ChannelRoster(Roster):
    """The ranks that a channel joins."""

    def __init__(self, channel: Channel) -> None:
        """Use a channel, alone until it is a group's."""
        self._channel = channel
        self.rank, self.size = channel.rank, channel.size
        self._is_over = False

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
            if done is None:
                raise ConnectError.late(sorted(one.peer for one in waiting), deadline - began)
            if done.error and done in waiting:
                raise self._left_by(done.peer)
            waiting.discard(done)
        return [row.tobytes().rstrip(b"\0") for row in words]

    def open_channel(self, deadline: float) -> Channel:  # noqa: ARG002 - it is open
        """Return the channel."""
        return self._channel

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()

    def give_up(self, error: BaseException) -> None:
        """Tell the others by the channel, and close it with what is under way."""
        try:
            if not self._is_over:
                now = self._channel.now()
                self._channel.flush(now + _TELL_S)  # others may have all that they need, and find the reason themselves
                self._channel.ask(_why(self.rank, error), lambda _: True, now + _TELL_S)
        finally:
            self._channel.close()

    def _left_by(self, peer: int) -> ConnectError:
        """Return the error of a rank that another has left waiting: what that one says, or one that it has heard."""
        self._is_over = True
        told = self._channel.ask(b"", lambda told: any(told.values()), self._channel.now() + _TELL_S)
        for words in filter(None, told.values()):
            # A rank that has joined all others and left their group since says something else.
            with contextlib.suppress(ValueError):
                return _told_why(words)
        return ConnectError.given_up([peer])


def of_communicator(communicator: Any) -> Roster:
    """Return the ranks of an mpi4py communicator, which is duplicated, so that the user's messages are not met."""
    from treefold.engines.mpi import duplicate  # noqa: PLC0415 - mpi4py, which the user has chosen

    return ChannelRoster(duplicate(communicator))


def _why(rank: int, error: BaseException) -> bytes:
    """Return what the others are told of the error for which a rank gives up."""
    words = str(error) if isinstance(error, ConnectError) else f"{type(error).__name__} {error}".rstrip()
    return json.dumps([rank, words[:_WORDS_BYTES], getattr(error, "ranks", ())]).encode()


def _told_why(why: bytes) -> ConnectError:
    """Return the error of a rank that was told why another one has given up."""
    rank, words, ranks = json.loads(why)
    return ConnectError.told(rank, words, ranks)
