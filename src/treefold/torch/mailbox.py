"""Messages between two ranks of a process group, outside the order of its collectives.

For each ordered pair of ranks there is one connection, which the sender opens when it first sends: the bytes that it
holds are the bound of the mailbox. A sender offers a tensor by its tag and size, and sends it when the receiver has
asked for it, so that nothing is kept for which there is no place. A thread of its own makes all of a rank's transfers
progress, also while the rank computes or is in a collective.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import secrets
import selectors
import shutil
import socket
import struct
import tempfile
import threading
import time
from collections import deque
from functools import partial
from pathlib import Path
from typing import Any

from treefold.errors import CallMismatchError, DeadlineError, GroupError, PeerLostError
from treefold.group.descriptor_passing import peer as process_at
from treefold.torch.lines import Line, Transfer

#: Token, rank of the sender.
_HELLO = struct.Struct("<64sI")
#: Whether the tensor itself follows, tag, bytes, number of the message.
_NEWS = struct.Struct("<?qQQ")
#: Number of the message, whether the receiver's tensor has its size.
_ANSWER = struct.Struct("<Q?")
_POLL_S = 0.01
_ADDRESS = "treefold/mail/{}"


class Mailbox:
    """What a rank sends to and receives from single other ranks."""

    def __init__(self, store: Any, rank: int) -> None:
        """Listen for senders, and say in the group's store where."""
        self._store, self._rank = store, rank
        self._folder, self._token = tempfile.mkdtemp(prefix="treefold-"), secrets.token_hex(32)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        path = str(Path(self._folder, "m"))
        self._listener.bind(path)
        self._listener.listen()
        self._listener.setblocking(False)  # noqa: FBT003 - the socket module's signature
        store.set(_ADDRESS.format(rank), json.dumps([path, self._token]))
        self._posted: deque[tuple[Transfer, bool]] = deque()
        self._waker, self._woken = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._outgoing: dict[int, Line] = {}
        #: Transfers that wait: for the receiver's address, for its answer, for a sender's offer, for the tensor itself.
        self._unsent: list[Transfer] = []
        self._offered: dict[tuple[int, int], Transfer] = {}
        self._wanted: list[Transfer] = []
        self._coming: dict[tuple[int, int], Transfer] = {}
        #: What senders have offered and nobody has wanted yet: sender, tag, bytes, number, the line it came by.
        self._offers: list[tuple[int, int, int, int, Line]] = []
        self._gone: set[int] = set()
        self._count, self._is_closed = 0, False
        self._thread = threading.Thread(target=self._run, name="treefold mailbox", daemon=True)
        self._thread.start()

    def post(self, transfer: Transfer, *, is_sent: bool) -> None:
        """Begin a transfer, to its peer or from it."""
        if self._is_closed:
            transfer.finish(GroupError.closed())
            return
        self._posted.append((transfer, is_sent))
        self._wake()

    def close(self) -> None:
        """End the thread; what is under way fails."""
        self._is_closed = True
        self._wake()
        self._thread.join()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # closed
            self._waker.send(b"w")

    def _run(self) -> None:
        try:
            while not self._is_closed:
                self._begin_posted()
                self._connect()
                self._match()
                self._progress()
                self._drop_late()
        finally:
            self._is_closed = True
            self._end()

    def _progress(self) -> None:
        """Wait until something can be read or written, and do that."""
        for key in list(self._selector.get_map().values()):
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if key.data and key.data.has_writes else 0)
            if events != key.events:
                self._selector.modify(key.fileobj, events, key.data)
        for key, events in self._selector.select(self._patience()):
            if key.fileobj is self._listener:
                self._accept()
            elif key.fileobj is self._woken:
                self._woken.recv(4096)
            else:
                self._pass(key.data, events)

    def _begin_posted(self) -> None:
        while self._posted:
            transfer, is_sent = self._posted.popleft()
            (self._unsent if is_sent else self._wanted).append(transfer)

    def _patience(self) -> float | None:
        """Return how long nothing can happen without an event."""
        waiting = self._waiting()
        if not waiting:
            return None
        return _POLL_S if self._unsent else max(0.0, min(one.until for one in waiting) - time.monotonic())

    def _waiting(self) -> list[Transfer]:
        return [*self._unsent, *self._offered.values(), *self._wanted, *self._coming.values()]

    def _drop_late(self) -> None:
        now = time.monotonic()
        for transfer in [one for one in self._waiting() if one.until <= now]:
            self._fail(transfer, DeadlineError.mail(transfer.peer))

    def _fail(self, transfer: Transfer, error: GroupError) -> None:
        for waiting in (self._unsent, self._wanted):
            if transfer in waiting:
                waiting.remove(transfer)
        for numbered in (self._offered, self._coming):
            for key in [key for key, one in numbered.items() if one is transfer]:
                del numbered[key]
        transfer.finish(error)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            connection, _ = self._listener.accept()
            if process_at(connection)[1] != os.getuid():
                connection.close()
                return
            hello = bytearray(_HELLO.size)
            self._add(Line(connection, memoryview(hello), partial(self._greet, hello)))

    def _add(self, line: Line) -> None:
        self._selector.register(line.connection, selectors.EVENT_READ, line)

    def _greet(self, hello: bytearray, line: Line) -> None:
        token, rank = _HELLO.unpack(hello)
        if not hmac.compare_digest(token, self._token.encode()):
            raise ConnectionResetError
        line.peer = rank
        self._expect_news(line)

    def _expect_news(self, line: Line) -> None:
        news = bytearray(_NEWS.size)
        line.expect(memoryview(news), partial(self._hear, news))

    def _hear(self, news: bytearray, line: Line) -> None:
        """Take an offer note, or the head of a tensor that was asked for."""
        is_tensor, tag, nbytes, number = _NEWS.unpack(news)
        sender = _known(line.peer)
        self._expect_news(line)
        if not is_tensor:
            self._offers.append((sender, tag, nbytes, number, line))
            return
        transfer = self._coming.get((sender, number))
        memory = memoryview(bytearray(nbytes)) if transfer is None else transfer.memory  # it was given up
        if nbytes:
            line.expect(memory, partial(self._receive, sender, number))
        else:
            self._receive(sender, number, line)

    def _receive(self, sender: int, number: int, line: Line) -> None:
        self._expect_news(line)
        transfer = self._coming.pop((sender, number), None)
        if transfer is not None:
            transfer.finish()

    def _match(self) -> None:
        """Ask for what is wanted and offered; of several offers of one sender and tag, the first."""
        for transfer in list(self._wanted):
            offer = next((one for one in self._offers if _fits(transfer, one)), None)
            if offer is None:
                if transfer.peer in self._gone:
                    self._fail(transfer, PeerLostError.mail(_known(transfer.peer)))
                continue
            sender, _, nbytes, number, line = offer
            self._offers.remove(offer)
            self._wanted.remove(transfer)
            transfer.peer = sender
            has_size = nbytes == len(transfer.memory)
            line.post(_ANSWER.pack(number, has_size))
            if has_size:
                self._coming[sender, number] = transfer
            else:
                transfer.finish(CallMismatchError.mail(sender, self._rank, nbytes, len(transfer.memory)))

    def _connect(self) -> None:
        """Offer what is to be sent, to receivers who have said where they listen."""
        for transfer in list(self._unsent):
            receiver = _known(transfer.peer)
            if receiver in self._gone:
                self._fail(transfer, PeerLostError.mail(receiver))
                continue
            line = self._outgoing.get(receiver) or self._line_to(receiver)
            if line is None:
                continue
            self._unsent.remove(transfer)
            self._count += 1
            self._offered[receiver, self._count] = transfer
            line.post(_NEWS.pack(False, transfer.tag, len(transfer.memory), self._count))  # noqa: FBT003 - a field

    def _line_to(self, receiver: int) -> Line | None:
        if not self._store.check([_ADDRESS.format(receiver)]):
            return None
        path, token = json.loads(self._store.get(_ADDRESS.format(receiver)))
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        if connection.connect_ex(path):  # it is gone, or left the address in an earlier run
            connection.close()
            return None
        answer = bytearray(_ANSWER.size)
        line = Line(connection, memoryview(answer), partial(self._send, answer))
        line.peer = receiver
        line.post(_HELLO.pack(token.encode(), self._rank))
        self._outgoing[receiver] = line
        self._add(line)
        return line

    def _send(self, answer: bytearray, line: Line) -> None:
        """Send a tensor that the receiver has asked for."""
        number, has_size = _ANSWER.unpack(answer)
        line.expect(memoryview(answer), partial(self._send, answer))
        receiver = _known(line.peer)
        transfer = self._offered.get((receiver, number))
        if transfer is None:  # it was given up, so the receiver waits until its own deadline
            return
        if not has_size:
            self._fail(transfer, CallMismatchError.mail(self._rank, receiver, len(transfer.memory), None))
            return
        line.post(_NEWS.pack(True, transfer.tag, len(transfer.memory), number))  # noqa: FBT003 - a field
        line.post(transfer.memory, partial(self._sent, receiver, number))

    def _sent(self, receiver: int, number: int) -> None:
        transfer = self._offered.pop((receiver, number), None)
        if transfer is not None:
            transfer.finish()

    def _pass(self, line: Line, events: int) -> None:
        try:
            if events & selectors.EVENT_WRITE:
                line.write()
            if events & selectors.EVENT_READ:
                line.read()
        except OSError:
            self._lose(line)

    def _lose(self, line: Line) -> None:
        """Forget a line whose other end is gone, and fail what was under way on it."""
        self._selector.unregister(line.connection)
        line.connection.close()
        if line.peer is None:
            return
        is_outgoing = self._outgoing.get(line.peer) is line
        self._offers = [offer for offer in self._offers if offer[-1] is not line]
        if is_outgoing:
            del self._outgoing[line.peer]
        self._gone.add(line.peer)
        numbered = self._offered if is_outgoing else self._coming
        for transfer in [one for (peer, _), one in numbered.items() if peer == line.peer]:
            self._fail(transfer, PeerLostError.mail(line.peer))

    def _end(self) -> None:
        self._begin_posted()
        for transfer in self._waiting():
            self._fail(transfer, GroupError.closed())
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr] # all of them are sockets
        self._selector.close()
        self._waker.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def _fits(transfer: Transfer, offer: tuple[int, int, int, int, Line]) -> bool:
    return transfer.peer in {None, offer[0]} and transfer.tag == offer[1]


def _known(peer: int | None) -> int:
    assert peer is not None  # noqa: S101 - only a wanted transfer and a line without a greeting have none
    return peer
