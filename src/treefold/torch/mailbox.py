"""Messages between two ranks of a process group, outside the order of its collectives.

For each ordered pair of ranks there is one connection, which is opened when one first sends to or receives from the
other: the bytes that it holds are the bound of the mailbox, and its end is that of the rank. A sender offers a tensor
by its tag and size, and sends it when the receiver has asked for it, so that nothing is kept for which there is no
place. A thread of its own makes all of a rank's transfers progress, also while the rank computes or is in a collective.
"""

from __future__ import annotations

import hmac
import math
import os
import selectors
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from treefold.errors import CallMismatchError, DeadlineError, GroupError, PeerLostError, ProcessGroupError
from treefold.torch.addresses import Address, Endpoint, connect
from treefold.torch.lines import Line
from treefold.torch.queues import Queues
from treefold.torch.transfers import Transfer

_Value = TypeVar("_Value")
#: Token, rank of the sender.
_HELLO = struct.Struct("<64sI")
#: What it is, tag, bytes, number of the message.
_NEWS = struct.Struct("<BqQQ")
#: A tensor is offered; an offer is taken back; the tensor itself follows.
_OFFERED, _WITHDRAWN, _TENSOR = range(3)
#: Number of the message, whether the receiver's tensor has its size.
_ANSWER = struct.Struct("<Q?")
#: How long until what could not be done at once is tried again, and the longest wait of all.
_POLL_S, _LONGEST_S = 0.01, 3600.0


class _Offer(NamedTuple):
    """A message that its sender would send: the sender's number of it, and how many bytes it has."""

    number: int
    sender: int
    nbytes: int


class Mailbox:
    """What a rank sends to and receives from single other ranks. It opens with the first message."""

    def __init__(self, rank: int, addresses: Sequence[Address], listener: socket.socket) -> None:
        """Begin without messages. ``addresses``: where the ranks listen; ``listener``: this rank's socket there."""
        self._rank, self._addresses, self._listener, self._pid = rank, addresses, listener, os.getpid()
        self._posted: deque[Transfer] = deque()
        self._outgoing: dict[int, Line] = {}
        self._incoming: dict[int, Line] = {}
        #: Transfers that wait until the receiver is reached, by receiver, and for its answer, by their numbers.
        self._unsent: Queues[int, Transfer] = Queues()
        self._offered: dict[int, Transfer] = {}
        #: Transfers that wait for an offer, by the rank that they want one from and the tag, and for the tensor itself.
        self._wanted: Queues[tuple[int | None, int], Transfer] = Queues()
        self._coming: dict[tuple[int, int], Transfer] = {}
        #: What senders have offered and nobody has wanted yet, by sender and tag.
        self._offers: Queues[tuple[int, int], _Offer] = Queues()
        self._gone: set[int] = set()
        #: Why the latest connection could not be had.
        self._refused: OSError | None = None
        #: A moment before which no transfer is late.
        self._look_at = math.inf
        self._is_closed = False
        #: Held by this mailbox's own threads alone, which no signal handler interrupts.
        self._opening = threading.Lock()
        self._endpoint: Endpoint | None = None
        self._thread: threading.Thread | None = None

    def post(self, transfer: Transfer) -> None:
        """Begin a transfer, to its peer or from it; if it has ended early, forget it.

        Raises:
            ProcessGroupError: the peer has another network.
            GroupError: the system has no descriptors or threads left.

        """
        peer, own = transfer.peer, self._addresses[self._rank]
        if peer is not None and self._addresses[peer].network != own.network:
            raise ProcessGroupError.network(peer)
        if self._endpoint is None and not self._is_closed:
            self._open()
        try:
            self._posted.append(transfer)
            self._wake()
        except BaseException:  # interrupted: nobody waits for it
            transfer.finish(GroupError.mail_given_up())
            raise
        if self._is_closed:
            transfer.finish(GroupError.closed())

    def close(self) -> None:
        """End the thread; what is under way fails."""
        if os.getpid() != self._pid:  # a forked child has neither the thread nor the connections
            return
        self._is_closed = True
        self._wake()
        if self._thread not in {None, threading.current_thread()}:
            self._thread.join()
        self._listener.close()

    def _open(self) -> None:
        """Start a thread. It takes the mailbox over itself, so that an interrupt leaves nothing half done here."""
        try:
            endpoint = Endpoint(self._listener)
        except OSError as error:
            raise GroupError.no_mail(error) from None
        try:
            threading.Thread(target=self._run, args=(endpoint,), name="treefold mailbox", daemon=True).start()
        except RuntimeError as error:  # no room for another thread
            endpoint.close()
            raise GroupError.no_mail(error) from None

    def _take_over(self, endpoint: Endpoint) -> bool:
        """Tell whether this thread is the first one."""
        with self._opening:
            if self._endpoint is None:
                self._endpoint, self._thread = endpoint, threading.current_thread()
            return self._endpoint is endpoint

    def _wake(self) -> None:
        if self._endpoint is not None:
            self._endpoint.wake()

    def _run(self, endpoint: Endpoint) -> None:
        if not self._take_over(endpoint):
            endpoint.close()
            return
        try:
            while not self._is_closed:
                try:
                    self._begin_posted()
                    self._progress(endpoint)
                    self._drop_late()
                except Exception as error:  # noqa: BLE001 - later messages must not wait for a thread that has ended
                    self._fail_all(GroupError.mail_failed(error))
                    time.sleep(_POLL_S)
        finally:
            self._is_closed = True
            self._end(endpoint)

    def _progress(self, endpoint: Endpoint) -> None:
        """Wait until something can be read or written, and do that."""
        for key in list(endpoint.selector.get_map().values()):
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if key.data and key.data.has_writes else 0)
            if events != key.events:
                endpoint.selector.modify(key.fileobj, events, key.data)
        for key, events in endpoint.selector.select(self._patience()):
            if key.fileobj is endpoint.listener:
                self._accept(endpoint)
            elif key.fileobj is endpoint.woken:
                endpoint.woken.recv(4096)
            else:
                self._pass(key.data, events)

    def _begin_posted(self) -> None:
        """Offer what is to be sent, and ask for what is wanted and offered."""
        while self._posted:
            transfer = self._posted.popleft()
            try:
                self._begin(transfer)
            except Exception as error:  # noqa: BLE001 - whoever waits for the transfer raises it
                self._fail(transfer, GroupError.mail_failed(error))
        for receiver in list(self._unsent):
            self._offer_to(receiver)

    def _begin(self, transfer: Transfer) -> None:
        if transfer.is_completed():
            self._forget(transfer)
            return
        self._look_at = min(self._look_at, transfer.until)
        if transfer.is_sent:
            self._unsent.add(_known(transfer.peer), transfer)
            return
        if transfer.peer is not None and transfer.peer not in self._incoming:
            self._line_to(transfer.peer)  # by its end this rank sees that of a sender which has not come yet
        self._want(transfer)

    def _patience(self) -> float:
        """Return how long nothing can happen without an event."""
        return _POLL_S if self._unsent else max(0.0, min(self._look_at - time.monotonic(), _LONGEST_S))

    def _waiting(self) -> list[Transfer]:
        queued = [one for queues in (self._unsent, self._wanted) for queue in queues.values() for one in queue]
        coming = [one for one in self._coming.values() if not one.is_completed()]  # it comes though it was given up
        return [*queued, *self._offered.values(), *coming]

    def _drop_late(self) -> None:
        """Fail transfers that are late. All of them are looked at, so seldom."""
        now = time.monotonic()
        if now < self._look_at:
            return
        for transfer in self._waiting():
            if transfer.until <= now:
                self._fail(transfer, DeadlineError.mail(transfer.peer, self._refused))
        self._look_at = max(now + _POLL_S, min((one.until for one in self._waiting()), default=math.inf))

    def _fail(self, transfer: Transfer, error: GroupError) -> None:
        transfer.finish(error)
        self._forget(transfer)

    def _forget(self, transfer: Transfer) -> None:
        """Forget a transfer that has ended early, and tell a receiver to whom it was offered to take the next one."""
        if not transfer.is_sent:
            self._wanted.discard(transfer.wanted, transfer)
        elif self._offered.pop(transfer.number, None) is None:
            self._unsent.discard(_known(transfer.peer), transfer)
        elif transfer.peer in self._outgoing:
            self._tell(_WITHDRAWN, transfer)

    def _tell(self, what: int, transfer: Transfer) -> None:
        news = _NEWS.pack(what, transfer.tag, len(transfer.memory), transfer.number)
        self._outgoing[_known(transfer.peer)].post(news)

    def _fail_all(self, error: GroupError) -> None:
        for transfer in self._waiting():
            self._fail(transfer, error)

    def _accept(self, endpoint: Endpoint) -> None:
        try:
            connection = endpoint.accept()
        except OSError as error:  # no descriptor for it, which the next one would not have either
            self._refused = error
            time.sleep(_POLL_S)
            return
        if connection is None:
            return
        hello = bytearray(_HELLO.size)
        try:
            self._add(Line(connection, memoryview(hello), partial(self._greet, hello)))
        except OSError:
            connection.close()

    def _add(self, line: Line) -> None:
        _known(self._endpoint).selector.register(line.connection, selectors.EVENT_READ, line)
        self._refused = None

    def _greet(self, hello: bytearray, line: Line) -> None:
        token, rank = _HELLO.unpack(hello)
        if not hmac.compare_digest(token, self._addresses[self._rank].token.encode()):
            raise ConnectionResetError
        line.peer = rank
        self._incoming[rank] = line
        self._expect_news(line)

    def _expect_news(self, line: Line) -> None:
        news = bytearray(_NEWS.size)
        line.expect(memoryview(news), partial(self._hear, news))

    def _hear(self, news: bytearray, line: Line) -> None:
        """Take an offer, or the head of a tensor that was asked for."""
        what, tag, nbytes, number = _NEWS.unpack(news)
        offer = _Offer(number, _known(line.peer), nbytes)
        self._expect_news(line)
        key = offer.sender, tag
        if what == _OFFERED:
            self._offers.add(key, offer)
            while key in self._offers and (transfer := self._wanted.take([key, (None, tag)])) is not None:
                self._want(transfer)
        elif what == _WITHDRAWN:
            self._offers.discard(key, offer)
            asked = self._coming.pop((offer.sender, number), None)
            if asked is not None:
                asked.peer = asked.wanted[0]
                self._want(asked)
        elif nbytes:
            line.expect(self._coming[offer.sender, number].memory, partial(self._receive, offer.sender, number))
        else:
            self._receive(offer.sender, number, line)

    def _receive(self, sender: int, number: int, line: Line) -> None:
        self._expect_news(line)
        self._coming.pop((sender, number)).finish()

    def _want(self, transfer: Transfer) -> None:
        """Ask for the first message that fits and is offered, or wait for one."""
        if transfer.is_completed():  # it was given up, so the offer is another transfer's
            return
        senders = self._incoming if transfer.peer is None else [transfer.peer]
        offer = self._offers.take((sender, transfer.tag) for sender in senders)
        if offer is not None:
            self._ask(transfer, *offer)
        elif transfer.peer in self._gone:
            transfer.finish(PeerLostError.mail(_known(transfer.peer)))
        else:
            self._wanted.add(transfer.wanted, transfer)

    def _ask(self, transfer: Transfer, number: int, sender: int, nbytes: int) -> None:
        transfer.peer = sender
        has_size = nbytes == len(transfer.memory)
        self._incoming[sender].post(_ANSWER.pack(number, has_size))
        if has_size:
            self._coming[sender, number] = transfer
        else:
            transfer.finish(CallMismatchError.mail(sender, self._rank, nbytes, len(transfer.memory)))

    def _offer_to(self, receiver: int) -> None:
        """Offer what is to be sent, if its receiver can be reached."""
        line = self._line_to(receiver)
        if line is None and receiver not in self._gone:
            return
        while (transfer := self._unsent.take([receiver])) is not None:
            if line is None:
                transfer.finish(PeerLostError.mail(receiver))
            elif not transfer.is_completed():
                self._offered[transfer.number] = transfer
                self._tell(_OFFERED, transfer)

    def _line_to(self, receiver: int) -> Line | None:
        """Return the line to a rank; None if it is gone, or cannot be reached now; only sends try again."""
        if receiver in self._outgoing or receiver in self._gone:
            return self._outgoing.get(receiver)
        try:
            connection = connect(self._addresses[receiver])
        except ConnectionRefusedError:
            self._gone.add(receiver)
            return None
        except OSError as error:
            self._refused = error
            return None
        answer = bytearray(_ANSWER.size)
        line = Line(connection, memoryview(answer), partial(self._send, answer))
        try:
            self._add(line)
        except OSError:
            connection.close()
            return None
        line.peer = receiver
        line.post(_HELLO.pack(self._addresses[receiver].token.encode(), self._rank))
        self._outgoing[receiver] = line
        return line

    def _send(self, answer: bytearray, line: Line) -> None:
        """Send a tensor that the receiver has asked for."""
        number, has_size = _ANSWER.unpack(answer)
        line.expect(memoryview(answer), partial(self._send, answer))
        transfer = self._offered.get(number)
        if transfer is None:  # it was given up, which the receiver was told
            return
        if has_size:
            self._tell(_TENSOR, transfer)
            line.post(transfer.memory, partial(self._sent, number))
        else:
            del self._offered[number]
            transfer.finish(CallMismatchError.mail(self._rank, _known(line.peer), len(transfer.memory), None))

    def _sent(self, number: int) -> None:
        transfer = self._offered.pop(number, None)
        if transfer is not None:
            transfer.finish()

    def _pass(self, line: Line, events: int) -> None:
        try:
            if events & selectors.EVENT_WRITE:
                line.write()
            if events & selectors.EVENT_READ:
                line.read()
        except Exception:  # noqa: BLE001 - whatever came by this line, the others go on
            self._lose(line)

    def _lose(self, line: Line) -> None:
        """Forget a line whose other end is gone, and fail what was under way on it."""
        _known(self._endpoint).selector.unregister(line.connection)
        line.connection.close()
        peer = line.peer
        if peer is None:
            return
        self._gone.add(peer)
        if self._outgoing.get(peer) is line:
            del self._outgoing[peer]
            lost = [one for one in self._offered.values() if one.peer == peer]
        else:
            for key in [key for key in self._offers if key[0] == peer]:
                del self._offers[key]
            lost = [self._coming.pop(key) for key in list(self._coming) if key[0] == peer]
        lost += [one for key, queue in self._wanted.items() if key[0] == peer for one in queue]
        for transfer in lost:
            self._fail(transfer, PeerLostError.mail(peer))

    def _end(self, endpoint: Endpoint) -> None:
        for transfer in (*self._waiting(), *self._posted):
            transfer.finish(GroupError.closed())
        for key in list(endpoint.selector.get_map().values()):
            if key.data is not None:
                key.data.connection.close()
        endpoint.close()


def _known(value: _Value | None) -> _Value:
    assert value is not None  # noqa: S101 - only a wanted transfer and a line without a greeting have no peer
    return value
