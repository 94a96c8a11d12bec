"""Channels over PyTorch's gloo: a process group of our own, on a store that the user's ranks share."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import threading
import time
import weakref
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future, wait
from datetime import timedelta
from typing import Any, NamedTuple

import torch
from torch.distributed import ProcessGroupGloo, Store

from treefold.backends import HostArray
from treefold.engines.interface import CONTROL_TAGS, Channel, Limits, Transfer
from treefold.engines.stores import Meeting, asked, in_words, interfaces, start_aside
from treefold.engines.times import CLOSE_S, GRACE_PERIOD_S, RETRY_S
from treefold.errors import ConnectError, GroupError
from treefold.errors.groups import numbered

_FOREVER = timedelta(days=365)
#: gloo keeps tags in 32 bits with a sign.
_TAGS = 1 << 30
#: No message has these tags: their receives only expire.
_NOBODYS = _TAGS
_MESSAGE_BYTES = 1 << 30
_CHUNK_BYTES = 1 << 18
_TOO_LATE = "it has not ended by the deadline"


class GlooChannel(Channel):
    """gloo's sends and receives.

    gloo's transfers cannot be polled, so threads wait for them: for each peer one per rail, and one for control
    messages. The store must survive the ranks that may be lost.
    """

    def __init__(self, meeting: Meeting, deadline: float) -> None:
        """Connect the ranks of a meeting to each other.

        Raises:
            ConnectError: Some were not connected by the deadline, a moment of the monotonic clock, or have given up.

        """
        self.rank, self.size = meeting.rank, meeting.size
        self._meeting = meeting
        # Kept alive here: gloo's group holds only the C++ part of it.
        self._keys = _Keys(meeting)
        self._group = _connected(meeting, self._keys, deadline)
        self.limits = Limits(_TAGS, _MESSAGE_BYTES, chunk_bytes=_CHUNK_BYTES, rails=len(interfaces()) or 1)
        self._receives = GlooReceives()
        self._connections = _Connections(self._group, self.rank, self.size, self.limits.rails, [])
        #: Whether all connections are closed, and whether this rank has asked which ranks go on.
        self._is_over = self._has_decided = False
        # None of these may hold the channel, or it would never be dropped.
        self._drop = weakref.finalize(self, _let_go, self._connections, self._receives, os.getpid())
        self._drop.atexit = False

    def send(self, peer: int, tag: int, buffer: HostArray) -> Transfer:
        """Begin to send, and return at once."""
        transfer = Transfer(peer, tag, buffer, is_send=True)
        try:
            # The tensor is a view: ``transfer`` holds the array, and ``sent`` the transfer, until it is flushed.
            transfer.handle = self._group.send([torch.from_numpy(buffer)], peer, tag)
            self._connections.sent.append(transfer)
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
        # One thread per peer and rail, because a thread waits for its transfers in turn. A message behind data that the
        # peer does not send, or sends over a slower rail, would not be noticed.
        self._receives.wait_for(transfer, (peer, -1 if tag < CONTROL_TAGS else tag % self.limits.rails))
        return transfer

    def wait(self, deadline: float) -> Transfer | None:
        """Return a transfer that has ended; None at the deadline."""
        return self._receives.next_ended(deadline)

    def flush(self, deadline: float) -> None:
        """Wait for gloo's own thread, which writes to the sockets, unless they are closed."""
        if not self._is_over:
            self._connections.flush(deadline)
            self._connections.sent.clear()

    def now(self) -> float:
        """Return the time of the monotonic clock."""
        return time.monotonic()

    def read_words(self, deadline: float) -> Mapping[int, bytes] | None:
        """Return the words that ranks have left in the store; None if it is gone, or out of reach."""
        store, keys = self._meeting.store, {rank: self._word_key(rank) for rank in range(self.size)}
        try:
            return asked(lambda: {rank: store.get(key) for rank, key in keys.items() if store.check([key])}, deadline)
        except ConnectError:
            return None

    def stop(self, word: bytes, deadline: float) -> None:
        """Leave a word in the store, and break the connections."""
        store, key = self._meeting.store, self._word_key(self.rank)

        def write() -> None:
            store.set(key, word)
            store.check([key])  # once this is answered, the others can read it

        try:
            # Before the connections break: ranks that notice it look into the store for the reason.
            with contextlib.suppress(ConnectError):
                asked(write, deadline)
        finally:
            self._connections.end()
            self._is_over = True

    def without(self, ranks: Collection[int], deadline: float) -> Channel:
        """Decide in the store which ranks go on, and connect those."""
        if self._has_decided:
            raise GroupError(
                "Group.without was called before on this group, and who goes on is decided once. Connect again."
            )
        self._has_decided = True
        wanted = [rank for rank in range(self.size) if rank not in set(ranks)]
        key, words = f"{self._meeting.name}/without", json.dumps(wanted)
        # Ranks that want another set of ranks meet under other keys.
        meeting = Meeting(
            self._meeting.store, f"{key} {words}", wanted.index(self.rank), len(wanted), began=time.monotonic()
        )
        try:
            self._check_decided(json.loads(asked(lambda: meeting.store.compare_set(key, "", words), deadline)), wanted)
            meeting.exchange("here", b"", deadline)
            return GlooChannel(meeting, deadline)
        except BaseException as error:
            meeting.give_up(error)
            if isinstance(error, ConnectError):
                absent = [wanted[rank] for rank in error.ranks]
                raise (
                    ConnectError(
                        f"{numbered(absent)} should go on in a smaller group, and did not come before the deadline. "
                        "Connect again."
                    ).blaming(*absent)
                    if absent
                    else error
                ) from None
            raise

    def close(self) -> None:
        """Let the waiting threads end."""
        self._drop.detach()
        self._receives.close(are_broken=self._is_over)

    def _check_decided(self, decided: Sequence[int], wanted: Sequence[int]) -> None:
        if decided != wanted:
            raise GroupError.decided_otherwise(self.rank, decided, wanted)

    def _word_key(self, rank: int) -> str:
        """Return the key of the word of a rank that has stopped."""
        return f"{self._meeting.name}/word/{rank}"


class _Keys(Store):  # type: ignore[misc] # PyTorch's types are not looked at
    """The store that gloo's constructor sees, which waits for keys of other ranks unless one of them gives up.

    PyTorch's stores would wait in one call that blocks their client for everyone else, and cannot be ended.
    """

    def __init__(self, meeting: Meeting) -> None:
        super().__init__()
        self._meeting, self._store, self._name = meeting, meeting.store, f"{meeting.name}/gloo"
        self.is_over = threading.Event()

    def set(self, key: str, value: bytes) -> None:
        with in_words():
            self._store.set(f"{self._name}/{key}", value)

    def get(self, key: str) -> bytes:
        with in_words():
            value: bytes = self._store.get(f"{self._name}/{key}")  # gloo has waited for the key
            return value

    def wait(self, keys: list[str], timeout: timedelta = _FOREVER) -> None:
        deadline = time.monotonic() + timeout.total_seconds()
        with in_words():
            while not self._store.check([f"{self._name}/{key}" for key in keys]):
                self._meeting.raise_if_over()
                if time.monotonic() >= deadline or self.is_over.wait(RETRY_S):
                    raise _not_connected(_TOO_LATE)


def _connected(meeting: Meeting, keys: _Keys, deadline: float) -> Any:
    """Return gloo's group once every rank has connected to every other."""
    seconds = max(deadline - time.monotonic(), RETRY_S)
    # In a thread of its own: the constructor hears no signals.
    group = start_aside(
        lambda: ProcessGroupGloo(keys, meeting.rank, meeting.size, timedelta(seconds=seconds)), keys.is_over.set
    )
    try:
        wait([group], seconds + GRACE_PERIOD_S)
        connected = group.result(0)
        # Every rank waits for all: one that is connected might end, and keep others from connecting.
        meeting.exchange("connected", b"", deadline)
    except BaseException as error:
        keys.is_over.set()
        wait([group], CLOSE_S)  # Python aborts if the process ends while gloo asks for keys
        if isinstance(error, (RuntimeError, TimeoutError)) and not isinstance(error, ConnectError):
            raise _not_connected(str(error) or _TOO_LATE) from None
        raise
    return connected


def _not_connected(problem: str) -> ConnectError:
    return ConnectError.gloo(problem, ", ".join(interfaces()))


class _Connections(NamedTuple):
    """The connections of a channel, apart from it, so that they can be ended when the channel is garbage."""

    group: Any
    rank: int
    size: int
    rails: int
    sent: list[Transfer]

    def flush(self, deadline: float) -> None:
        """Wait until everything that was sent is written to the sockets, or has failed."""
        for transfer in self.sent:
            left = max(deadline - time.monotonic(), 1e-3)
            with contextlib.suppress(RuntimeError):  # a rank that has gone needs nothing any more
                transfer.handle.wait(timedelta(seconds=left))

    def end(self) -> None:
        """Break all connections: gloo does so only when a receive expires.

        A receive from a rank that is gone does not expire, so each peer is tried; once one has broken them all, the
        rest fail at once.
        """
        nowhere = torch.empty(1, dtype=torch.uint8)
        for rail in range(self.rails):
            for peer in range(self.size):
                if peer != self.rank:
                    with contextlib.suppress(RuntimeError):
                        self.group.recv([nowhere], peer, _NOBODYS + rail).wait(timedelta(milliseconds=1))


def _let_go(connections: _Connections, receives: GlooReceives, owner: int) -> None:
    """Release a channel that was dropped without ``close``."""

    def end() -> None:
        connections.flush(time.monotonic() + CLOSE_S)
        connections.end()
        receives.close(are_broken=True)

    if os.getpid() == owner:
        start_aside(end)  # in a thread: garbage collection may have interrupted anything


class GlooReceives:
    """The receives of a channel. For each way, a peer and a rail, one thread waits for the receives in turn.

    When a connection breaks, gloo does not wake a thread that waits for a message that has arrived in part. Such a
    thread stays, and keeps gloo's own objects of the channel and this object, which holds nothing once it is closed.
    """

    def __init__(self) -> None:
        """Start without threads."""
        # The queue from the waiting threads to the caller's. It also makes the received bytes visible to that thread.
        self._ended = queue.SimpleQueue[Transfer | None]()
        self._ways = dict[tuple[int, int], _Way]()

    def wait_for(self, transfer: Transfer, way: tuple[int, int]) -> None:
        """Queue a receive that has begun behind the others of its way; its handle is gloo's work and the tensor."""
        if way not in self._ways:
            self._ways[way] = begun = _Way()
            begun.is_over = start_aside(lambda: self._wait_on(begun))
        self._ways[way].begun.put(transfer)

    def end(self, transfer: Transfer, error: Exception | None = None) -> None:
        """Note the end of a transfer."""
        transfer.error = "" if error is None else str(error) or "the connection is broken"
        self._ended.put(transfer)

    def next_ended(self, deadline: float) -> Transfer | None:
        """Return a transfer that has ended; None at the deadline, or when this was closed."""
        with contextlib.suppress(queue.Empty):
            return self._ended.get(timeout=max(deadline - time.monotonic(), 0.0))
        return None

    def close(self, *, are_broken: bool) -> None:
        """Let the threads end: each ends once no receive is under way, or at once if all connections are broken.

        ``are_broken``: whether they are, so that gloo writes no message any more.
        """
        ways, self._ways = [*self._ways.values()], {}
        for way in ways:
            way.begun.put(None)
        if are_broken:
            wait([way.is_over for way in ways], RETRY_S)
            for way in ways:
                way.forget()
            _empty(self._ended)
            self._ended.put(None)  # wakes a thread in ``next_ended``, if another one has closed this

    def _wait_on(self, way: _Way) -> None:
        while way.take():
            error = None
            try:
                # gloo waits without the GIL, and without a deadline: one that passes breaks the connection for all
                # transfers. No variable of this thread holds the transfer meanwhile.
                way.under_way.handle[0].wait(_FOREVER)  # type: ignore[union-attr] # ``take`` returned True
            except RuntimeError as problem:
                error = problem
            if transfer := way.under_way:
                transfer.handle = None
                self.end(transfer, error)
            del transfer  # else it would stay alive while the thread waits for the next


class _Way:
    """The receives that one thread waits for in turn: those ``begun``, up to None, and the one ``under_way``."""

    def __init__(self) -> None:
        self.begun = queue.SimpleQueue[Transfer | None]()
        self.under_way: Transfer | None = None
        self.is_over: Future[None]

    def take(self) -> bool:
        """Wait for the next receive to begin; return whether there is one."""
        self.under_way = None
        self.under_way = self.begun.get()
        return self.under_way is not None

    def forget(self) -> None:
        """Drop all transfers."""
        _empty(self.begun)
        self.begun.put(None)
        if (transfer := self.under_way) and (handle := transfer.handle):
            handle[1].set_()  # gloo's work still holds the tensor: this detaches it from its memory
        self.under_way = None


def _empty(transfers: queue.SimpleQueue[Transfer | None]) -> None:
    with contextlib.suppress(queue.Empty):
        while True:
            transfers.get_nowait()
