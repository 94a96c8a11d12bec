"""Channels over PyTorch's gloo: a process group of our own, on a store that the user's ranks share."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, wait
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch.distributed import ProcessGroupGloo, Store

from treefold.backends import HostArray
from treefold.engines.gloo_receives import GlooReceives
from treefold.engines.interface import CONTROL_TAGS, Channel, Limits, Transfer
from treefold.engines.meeting import Meeting
from treefold.engines.side_threads import start_aside
from treefold.engines.stores import CheckedStore, asked, interfaces
from treefold.engines.unshared import unshared_sockets
from treefold.errors import ConnectError, GroupError

_Answer = TypeVar("_Answer")
_FOREVER = timedelta(days=365)
#: gloo keeps tags in 32 bits with a sign.
_TAGS = 1 << 30
#: The last tags are nobody's: their receives only expire.
_NOBODYS = _TAGS
_MESSAGE_BYTES = 1 << 30
_CHUNK_BYTES = 1 << 18
_POLL_S = 0.005
_FLUSH_S = 1.0
#: How long gloo's constructor goes on once it should end.
_END_S = 0.2
#: If gloo has had less, the deadline was too early, and the network may be as it should.
_ENOUGH_S = 2.0
#: The step of a meeting in which gloo connects.
_CONNECTED = "connected"


class GlooChannel(Channel):
    """gloo's sends and receives.

    Its transfers cannot be asked whether they are done, so threads wait: for each peer one per rail, and one for what
    ranks tell each other. The store must survive the ranks that may be lost.
    """

    def __init__(self, meeting: Meeting, deadline: float, roster_type: type[Any]) -> None:
        """Connect the ranks of a meeting to each other. ``roster_type``: of that in which some go on without others.

        Raises:
            ConnectError: the meeting is over, or some were not connected in time.

        """
        self.rank, self.size = meeting.rank, meeting.size
        self._roster_type = roster_type
        #: How many decisions about who goes on this rank has left for good, and by what it has tried to join the next.
        self._left = 0
        self._tried: Any = None
        self._store, self._name = meeting.store, f"{meeting.name}/channel"
        # Kept: gloo's group holds no more of it than what is C++.
        self._keys = _Keys(self._store, self._name)
        self._group = _connected(meeting, self._keys, deadline)
        self.limits = Limits(_TAGS, _MESSAGE_BYTES, chunk_bytes=_CHUNK_BYTES, rails=len(interfaces()) or 1)
        self._receives = GlooReceives()
        self._sent: list[Transfer] = []
        #: How many of these were sent before the last ``settle``, and whether all connections are closed.
        self._settled, self._is_over = 0, False
        # None of these may hold the channel, or it would never be dropped.
        self._drop = weakref.finalize(
            self, _let_go, self._group, self.rank, self.size, self.limits.rails, self._receives, self._sent, os.getpid()
        )
        self._drop.atexit = False

    def send(self, peer: int, tag: int, buffer: HostArray) -> Transfer:
        """Begin to send, and return at once."""
        transfer = Transfer(peer, tag, buffer, is_send=True)
        try:
            # The tensor is a view: ``transfer`` holds the array, and ``_sent`` the transfer, until ``settle`` says that
            # it has arrived.
            transfer.handle = self._group.send([torch.from_numpy(buffer)], peer, tag)
            self._sent.append(transfer)
        except RuntimeError as error:
            self._receives.end(transfer, error)
        return transfer

    def receive(self, peer: int, tag: int, buffer: HostArray) -> Transfer:
        """Begin to receive, and return at once."""
        transfer, tensor = Transfer(peer, tag, buffer), torch.from_numpy(buffer)
        try:
            transfer.handle = self._group.recv([tensor], peer, tag), tensor
        except RuntimeError as error:
            self._receives.end(transfer, error)
            return transfer
        # One thread for each, because it waits for one transfer after the other: behind data that a peer does not send,
        # or sends over a slower rail, what else it sends would not be heard.
        self._receives.wait_for(transfer, (peer, -1 if tag < CONTROL_TAGS else tag % self.limits.rails))
        return transfer

    def wait(self, deadline: float) -> Transfer | None:
        """Return what has ended; None at the deadline."""
        return self._receives.next_ended(deadline)

    def meanwhile(self, work: Callable[[], object], give_up: Callable[[], object]) -> None:
        """Transfers go on by themselves; the thread that waits for the one that fails calls ``give_up``."""
        self._receives.beside(work, give_up)

    def settle(self, deadline: float) -> None:  # noqa: ARG002 - gloo's own thread sends on
        """Forget what the receivers have."""
        # What was sent before the last ``settle`` has been received: every rank has told a round since, which it does
        # when it has everything. The frames of that round itself may still be on their way.
        del self._sent[: self._settled]
        self._settled = len(self._sent)

    def flush(self, deadline: float) -> None:
        """Wait for gloo's own thread, which writes to the sockets, unless they are closed."""
        if self._is_over:
            return
        _flush(self._sent, deadline)
        self._sent.clear()
        self._settled = 0

    def now(self) -> float:
        """Return the time of the monotonic clock."""
        return time.monotonic()

    def words(self, deadline: float) -> Mapping[int, bytes] | None:
        """Return the words that ranks have left in the store; None if it is gone, or out of reach."""

        def read() -> dict[int, bytes]:
            keys = {rank: self._word_key(rank) for rank in range(self.size) if rank != self.rank}
            return {rank: self._store.get(key) for rank, key in keys.items() if self._store.check([key])}

        return _answered(read, deadline)

    def stop(self, word: bytes, deadline: float) -> None:
        """Leave a word in the store, and break the connections."""
        key = self._word_key(self.rank)

        def write() -> bool:
            self._store.set(key, word)
            return self._store.check([key])  # once this is answered, the others can read it

        try:
            # Before the connections are broken: ranks that notice that look there for the reason.
            _answered(write, deadline)
        finally:
            _disconnect(self._group, self.rank, self.size, self.limits.rails)
            self._is_over = True

    def without(self, ranks: Collection[int], deadline: float) -> Channel:
        """Decide in the store who goes on, and connect those."""
        wanted = [rank for rank in range(self.size) if rank not in set(ranks)]
        decided = self._decided(wanted, deadline)
        if decided != wanted:
            raise GroupError.decided_otherwise(self.rank, decided, wanted)
        self._tried = self._roster_type(self._store.store, decided.index(self.rank), len(decided), self._decision(0))
        try:
            connected: Channel = self._tried.connect(deadline)
        except ConnectError as error:
            absent = [decided[rank] for rank in error.ranks]
            raise (ConnectError.absent(absent) if absent else error.before(decided)) from None
        return connected

    def close(self) -> None:
        """Let the waiting threads end."""
        self._drop.detach()
        self._receives.close(are_broken=self._is_over)

    def _decided(self, wanted: list[int], deadline: float) -> list[int]:
        """Return the members of the decision that this rank has come to; those wanted, if it is the first there.

        A decision can only become a group if all its members come, and the next one exists only if a member has left
        it for good before all had. So of all that are made one at most becomes a group.
        """
        try:
            while True:
                decided = self._named(wanted, deadline)
                is_untried = decided == wanted and self._tried is None
                if is_untried or not self._may_leave(decided, wanted, deadline):
                    return decided
                # Noted before this rank names others: it must not come back, even if it does not hear the answer.
                self._left, self._tried = self._left + 1, None
        except ConnectError:
            raise ConnectError.undecided(self.rank) from None

    def _named(self, wanted: list[int], deadline: float) -> list[int]:
        """Return the members of a decision: whoever comes first names them, by one exchange of the store."""
        key, words = self._decision(0), json.dumps(wanted)
        decided: list[int] = json.loads(asked(lambda _: self._store.compare_set(key, "", words), deadline))
        return decided

    def _may_leave(self, decided: list[int], wanted: list[int], deadline: float) -> bool:
        """Tell whether a decision is void, or becomes so if this rank, which has tried to join it, leaves it."""
        key, tried = self._decision(1), self._tried if set(wanted) < set(decided) else None
        return asked(lambda _: self._store.check([key]) or (tried is not None and tried.is_out()), deadline)

    def _decision(self, ahead: int) -> str:
        """Return the key of the decision that this rank has come to, or of one ahead."""
        return f"{self._name}/without/{self._left + ahead}"

    def _word_key(self, rank: int) -> str:
        """Return the key of the word of a rank that has stopped."""
        return f"{self._name}/word/{rank}"


def _answered(question: Callable[[], _Answer], deadline: float) -> _Answer | None:
    """Return what the store answers by the deadline; None if it does not, or is gone."""
    answer = Future[_Answer]()
    start_aside(question, answer, threading.Event())
    wait([answer], max(deadline - time.monotonic(), 0.0))
    return None if not answer.done() or answer.exception() else answer.result()


class _Keys(Store):  # type: ignore[misc] # PyTorch's types are not looked at
    """What gloo's constructor does with a store: it waits for keys of other ranks, until it is told to end.

    PyTorch's stores would wait as one question, which keeps their client from everybody else, and cannot be ended.
    """

    def __init__(self, store: CheckedStore, name: str) -> None:
        super().__init__()
        self._store, self._name = store, name
        self.is_over = threading.Event()

    def set(self, key: str, value: bytes) -> None:
        self._store.set(f"{self._name}/{key}", value)

    def get(self, key: str) -> bytes:
        return self._store.get(f"{self._name}/{key}")  # gloo has waited for it

    def wait(self, keys: list[str], timeout: timedelta = _FOREVER) -> None:
        deadline = time.monotonic() + timeout.total_seconds()
        while not self._store.check([f"{self._name}/{key}" for key in keys]):
            if self.is_over.is_set() or time.monotonic() >= deadline:
                raise TimeoutError
            time.sleep(_POLL_S)


def _connected(meeting: Meeting, keys: _Keys, deadline: float) -> Any:
    """Return gloo's group, once every rank has connected to every other."""
    group, began = Future[Any](), time.monotonic()

    def connect() -> Any:
        with unshared_sockets():
            return ProcessGroupGloo(keys, meeting.rank, meeting.size, timedelta(seconds=max(deadline - began, 1e-3)))

    def is_connected() -> bool:
        if not group.done() and time.monotonic() < deadline:
            return False
        try:
            group.result(0)
        except ConnectError:
            raise  # of the store
        except (RuntimeError, TimeoutError) as error:
            problem = ConnectError.gloo(str(error) or "it has not ended by the deadline", ", ".join(interfaces()))
            if time.monotonic() >= deadline and deadline < began + _ENOUGH_S:
                problem = meeting.out_of_time(deadline)
            raise meeting.stopped(_CONNECTED, problem) from None
        return True

    try:
        # By a thread of its own: the constructor hears no signals, and no reason why the meeting is over.
        start_aside(connect, group, keys.is_over)
        # All wait for all: who is connected may end, which would keep others from connecting.
        meeting.exchange(_CONNECTED, b"", deadline, is_connected)
    except BaseException:
        # Not at once: ranks that have read this one's address wait for its connection, until their own deadline.
        wait([group], _END_S)
        keys.is_over.set()
        wait([group], _END_S)  # Python aborts if the process ends while gloo asks ``keys``
        raise
    return group.result()


def _flush(sent: Sequence[Transfer], deadline: float) -> None:
    for transfer in sent:
        left = max(deadline - time.monotonic(), 1e-3)
        with contextlib.suppress(RuntimeError):  # whoever has gone needs nothing any more
            transfer.handle.wait(timedelta(seconds=left))


def _disconnect(group: Any, rank: int, size: int, rails: int) -> None:
    """Break all connections: gloo does so when a receive expires, and nothing else does.

    One from a rank that is gone does not expire, so each is tried; once all are broken, the rest fail at once.
    """
    nowhere = torch.empty(1, dtype=torch.uint8)
    for rail in range(rails):
        for peer in range(size):
            if peer != rank:
                with contextlib.suppress(RuntimeError):
                    group.recv([nowhere], peer, _NOBODYS + rail).wait(timedelta(milliseconds=1))


def _let_go(
    group: Any,
    rank: int,
    size: int,
    rails: int,
    receives: GlooReceives,
    sent: Sequence[Transfer],
    owner: int,
) -> None:
    """Do for a channel that was dropped what its user has not done by ``close``."""

    def end() -> None:
        _flush(sent, time.monotonic() + _FLUSH_S)
        _disconnect(group, rank, size, rails)
        receives.close(are_broken=True)

    if os.getpid() == owner:
        # Beside whatever the collector of garbage has interrupted. A process that ends waits for it.
        start_aside(end, Future(), threading.Event())
