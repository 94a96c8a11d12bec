"""What knows the ranks of a job, before there is a group: a store of PyTorch's, or an MPI communicator."""

from __future__ import annotations

import abc
import contextlib
import json
import signal
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from typing import Any

import numpy as np

from treefold.engines.interface import SETTLE_S, Channel, Transfer
from treefold.engines.meeting import SILENT_S, Meeting, reason
from treefold.engines.side_threads import start_aside
from treefold.engines.stores import SLOW_S, CheckedStore, asked, interfaces
from treefold.errors import ConnectError

#: Of what a rank says by a channel: each of 1,000 characters of a refusal may take 12, and little stands beside it.
_WORDS_BYTES = 16384
_POLL_S = 0.01
#: How long a rank that gives up takes to tell the others, or to hear why one of them has.
_TELL_S = 0.2
#: What stands in place of the token of a rank that has come, and has left before all had.
_LEFT = ""


class Roster(abc.ABC):
    """Ranks that can tell each other a few words, and open a channel."""

    rank: int
    size: int
    #: When this rank began to connect, by the monotonic clock; errors tell the seconds since.
    began: float
    #: How long the ranks of a host wait for each other beyond the deadline: who watches says first who is missing.
    watch_s = 0.0

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
    def give_up(self, error: BaseException) -> ConnectError | None:
        """Give back everything, and tell ranks that still wait why this one does not go on.

        Return the reason of another rank, if they have heard that first.
        """

    @contextlib.contextmanager
    def watching(self, deadline: float) -> Iterator[Callable[[], None]]:  # noqa: ARG002 - see StoreRoster
        """Give a function for this rank while it waits elsewhere: it raises why the ranks do not go on, once known."""
        yield lambda: None


class StoreRoster(Roster):
    """Ranks that share one of PyTorch's stores, of which they use nothing but keys that begin with ``job``.

    Ranks of a job connect again and again, some have tried in vain meanwhile, and some are new processes. So attempts
    have numbers, and each has a record in the store, in which each rank that is there has the token of its try. Ranks
    join the first attempt that is neither complete nor over; they may leave it until it is complete. Then they meet,
    and if one of them turns out to be a process that is gone, whose successor has come, they join the next attempt.
    """

    watch_s = 1.0

    def __init__(self, store: Any, rank: int, size: int, job: str) -> None:
        """Use a store that outlives the roster."""
        self.rank, self.size = rank, size
        self._store, self._job = CheckedStore(store), job
        self.began = time.monotonic()
        self._meeting: Meeting | None = None
        self._rounds = 0
        self._why: BaseException | None = None

    def exchange(self, said: bytes, deadline: float) -> list[bytes]:
        """Leave words in the store, and wait for those of all others."""
        if self._meeting is None:
            return asked(
                lambda is_over: self._come(said, deadline, is_over),
                deadline + SILENT_S,
                lambda: self._meeting is not None and self._meeting.is_stopping(),
            )
        self._rounds += 1
        return self._meeting.exchange(f"words {self._rounds}", said, deadline)

    def open_channel(self, deadline: float) -> Channel:
        """Connect by gloo, once all have come."""
        from treefold.engines.gloo import GlooChannel  # noqa: PLC0415 - PyTorch, which the user has chosen

        assert self._meeting is not None  # noqa: S101 - they have exchanged words
        return GlooChannel(self._meeting, deadline, StoreRoster)

    def connect(self, deadline: float) -> Channel:
        """Return a channel between ranks that know each other; some may have tried that in vain before."""
        try:
            self.exchange(b"", deadline)
            return self.open_channel(deadline)
        except BaseException as error:
            self.give_up(error)
            raise

    def is_out(self) -> bool:
        """Tell whether this rank has left before all had ever come: then they never have, unless it comes again."""
        # No rank joins a later attempt before the first is complete, which its record tells from then on.
        return self._tokens(0).get(self.rank, _LEFT) == _LEFT

    def missing_interfaces(self) -> list[str]:
        """Return what gloo will not find."""
        return sorted({*interfaces()}.difference(name for _, name in socket.if_nameindex()))

    def close(self) -> None:
        """Leave the keys: others may still read them."""

    def give_up(self, error: BaseException) -> ConnectError | None:
        """Tell the others why, if all had come; else they wait on, for this rank may come again."""
        self._why = error  # first: all may be there in this moment, and then the thread that sees it tells them
        meeting = self._meeting
        if meeting is not None:
            with contextlib.suppress(ConnectError):
                return asked(lambda _: meeting.end(error), time.monotonic() + _TELL_S)
        return None

    @contextlib.contextmanager
    def watching(self, deadline: float) -> Iterator[Callable[[], None]]:
        """Let a thread of its own look: the store may be slow, or silent.

        What has gone wrong among the ranks of this host may follow from what others say just then.
        """
        meeting, step = self._meeting, f"words {self._rounds + 1}"
        assert meeting is not None  # noqa: S101 - they have exchanged words
        why, is_done = Future[ConnectError | None](), threading.Event()

        def raise_if_over() -> None:
            # A store that has failed says nothing about the others.
            error = why.result() if why.done() and not why.exception() else None
            if error:
                raise error

        start_aside(lambda: meeting.watch(step, deadline, is_done), why, is_done)
        try:
            yield raise_if_over
        except ConnectError as error:
            wait([why], _TELL_S)
            if meeting.is_stopping():
                wait([why], SLOW_S)
            first = (why.exception() or why.result()) if why.done() else None
            raise first or error from None
        finally:
            is_done.set()

    def _come(self, said: bytes, deadline: float, is_over: threading.Event) -> list[bytes]:
        """Join an attempt, and return what each rank says once all have come."""
        token, attempt, has_joined = uuid.uuid4().hex, self._first_attempt(), False
        while True:
            meeting = Meeting(self._store, f"{self._job}/{attempt}", self.rank, self.size, self.began)
            tokens = self._tokens(attempt)
            own, is_complete = tokens.get(self.rank, _LEFT), all(tokens.get(rank) for rank in range(self.size))
            over, was_there = meeting.why_over(), own not in {_LEFT, token}  # in an earlier try, or another process
            if is_complete and own == token:
                words = self._first_words(meeting, said, deadline, is_over)
                if words is not None:
                    return words
                attempt, has_joined = self._pass_by(attempt), False
            elif over or (is_complete and was_there):
                if not has_joined:
                    meeting.replace()
                attempt, has_joined = self._pass_by(attempt), False
                if over and not was_there:
                    raise over
            elif self.rank >= self.size:
                meeting.end(ConnectError.rank_too_high(self.rank, self.size))
            elif is_over.is_set() or (has_joined and time.monotonic() >= deadline):
                self._leave(attempt, tokens, token)
            elif own == token or (was_there and has_joined):  # a successor is there: it has this one's place
                is_over.wait(_POLL_S)
            else:
                others = tokens if any(tokens.values()) else {}  # who has left before the first came is forgotten
                has_joined |= self._replace(attempt, tokens, {**others, self.rank: token})

    def _first_words(
        self, meeting: Meeting, said: bytes, deadline: float, is_over: threading.Event
    ) -> list[bytes] | None:
        """Return what the ranks of a complete attempt say; None if one was gone before, and has a successor."""
        self._meeting = meeting
        if self._why is not None:
            meeting.end(self._why)
        try:
            return meeting.poll("words 0", said, deadline, is_over)
        except ConnectError:
            if not meeting.is_replaced():
                raise
            if time.monotonic() >= deadline:
                raise meeting.out_of_time(deadline) from None
        self._meeting = None
        return None

    def _pass_by(self, attempt: int) -> int:
        """Note that this rank looks at the next attempt from now on, and return that; so it hears no reason twice."""
        self._store.set(self._next, str(attempt + 1))
        return attempt + 1

    def _leave(self, attempt: int, tokens: dict[int, str], token: str) -> None:
        """Take this rank out, and raise why: others never came, or have left; or return if the record has changed."""
        if tokens.get(self.rank) == token and not self._replace(attempt, tokens, {**tokens, self.rank: _LEFT}):
            return
        absent = [rank for rank in range(self.size) if rank not in tokens]
        left = [rank for rank, token in tokens.items() if token == _LEFT]
        raise ConnectError.late(absent, time.monotonic() - self.began) if absent else ConnectError.given_up(left)

    def _first_attempt(self) -> int:
        """Return the first attempt that a rank of this number has not seen end."""
        return int(self._store.get(self._next)) if self._store.check([self._next]) else 0

    def _tokens(self, attempt: int) -> dict[int, str]:
        """Return the token of each rank that has come, in the order in which they have."""
        found = self._store.compare_set(self._record(attempt), "", "{}")  # which makes one, if there is none
        return {int(rank): token for rank, token in json.loads(found).items()}

    def _replace(self, attempt: int, found: dict[int, str], wanted: dict[int, str]) -> bool:
        """Replace the record, unless another rank has meanwhile."""
        told = self._store.compare_set(self._record(attempt), json.dumps(found), json.dumps(wanted))
        return told == json.dumps(wanted).encode()

    def _record(self, attempt: int) -> str:
        return f"{self._job}/{attempt}/tokens"

    @property
    def _next(self) -> str:
        return f"{self._job}/next/{self.rank}"


class ChannelRoster(Roster):
    """The ranks that a channel joins."""

    def __init__(self, channel: Channel) -> None:
        """Use a channel, alone until it is a group's."""
        self._channel = channel
        self.rank, self.size = channel.rank, channel.size
        self.began = time.monotonic()
        self._is_over = False

    def exchange(self, said: bytes, deadline: float) -> list[bytes]:
        """Send words to all others."""
        words = np.zeros((self.size, _WORDS_BYTES), np.uint8)
        words[self.rank, : len(said)] = np.frombuffer(said, np.uint8)
        waiting, until = set[Transfer](), deadline - time.monotonic() + self._channel.now()
        for peer in range(self.size):
            if peer != self.rank:
                waiting.add(self._channel.receive(peer, 0, words[peer]))
                self._channel.send(peer, 0, words[self.rank])
        while waiting:
            done = self._channel.wait(until)
            if done is None:
                raise ConnectError.late(sorted(one.peer for one in waiting), deadline - self.began)
            if done.error and done in waiting:
                raise self._left_by(done.peer)
            waiting.discard(done)
        # What this rank does next, for however long, keeps nobody in this exchange.
        self._channel.settle(min(until, self._channel.now() + SETTLE_S))
        return [row.tobytes().rstrip(b"\0") for row in words]

    def open_channel(self, deadline: float) -> Channel:  # noqa: ARG002 - it is open
        """Return the channel."""
        return self._channel

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()

    def give_up(self, error: BaseException) -> ConnectError | None:
        """Tell the others by the channel, and close it with what is under way."""
        try:
            if not self._is_over:
                now = self._channel.now()
                self._channel.flush(now + _TELL_S)  # others may have all that they need, and find the reason themselves
                self._channel.stop(json.dumps(reason(self.rank, error)).encode(), now + _TELL_S)
        finally:
            self._channel.close()
        return None

    def _left_by(self, peer: int) -> ConnectError:
        """Return the error of a rank that another has left waiting: what a rank says that has stopped."""
        self._is_over = True
        until = self._channel.now() + _TELL_S
        words = [word for word in (self._channel.words(until) or {}).values() if word]
        # Passed on: a rank that waits for this one may not have heard it.
        self._channel.stop(words[0] if words else b"", until)
        for word in words:
            # A rank that has joined all others and left their group since says something else.
            with contextlib.suppress(ValueError):
                blamed, why, ranks = json.loads(word)
                return ConnectError.told(blamed, why, ranks)
        return ConnectError.given_up([peer])


def of_communicator(communicator: Any) -> Roster:
    """Return the ranks of an mpi4py communicator, which is duplicated, so that the user's messages are not met.

    All ranks call MPI several times for that, and wait for each other without a deadline: Ctrl-C is heard behind it.
    """
    from treefold.engines.mpi import duplicate  # noqa: PLC0415 - mpi4py, which the user has chosen

    heard, is_main = list[None](), threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGINT) if is_main else None
    if handler is not None:
        signal.signal(signal.SIGINT, lambda *_: heard.append(None))
    try:
        roster = ChannelRoster(duplicate(communicator))
    finally:
        if handler is not None:
            signal.signal(signal.SIGINT, handler)
    try:
        if heard:
            signal.raise_signal(signal.SIGINT)
    except BaseException as error:
        roster.give_up(error)
        raise
    return roster
