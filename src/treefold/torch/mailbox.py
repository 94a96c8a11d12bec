"""Messages between two ranks of a process group, outside the order of its collectives.

For each ordered pair of ranks there is one connection, which the sender opens when it first sends: the bytes that it
holds are the bound of the mailbox. A sender offers a tensor by its tag and size, and sends it when the receiver has
asked for it, so that nothing is kept for which there is no place. A thread of its own makes all of a rank's transfers
progress, also while the rank computes or is in a collective.
"""

from __future__ import annotations

import errno
import hmac
import os
import selectors
import struct
import threading
import time
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import TypeVar

from treefold.errors import CallMismatchError, DeadlineError, GroupError, PeerLostError, SharedMemoryError
from treefold.group.descriptor_passing import peer as process_at
from treefold.torch.addresses import Address, Endpoint, connect
from treefold.torch.lines import Line
from treefold.torch.transfers import Carrier, Transfer
from treefold.torch.turns import Turns

_Value = TypeVar("_Value")
#: Token, rank of the sender.
_HELLO = struct.Struct("<64sI")
#: Whether the tensor itself follows, tag, bytes, number of the message.
_NEWS = struct.Struct("<?qQQ")
#: Number of the message, whether the receiver's tensor has its size.
_ANSWER = struct.Struct("<Q?")
#: In place of an offer's bytes: the offer of that number is taken back.
_WITHDRAWN = (1 << 64) - 1
#: How long until what could not be done at once is tried again, and the longest wait of all.
_POLL_S, _LONGEST_S = 0.01, 3600.0


class Mailbox:
    """What a rank sends to and receives from single other ranks. It opens with the first message."""

    def __init__(self, rank: int, addresses: Sequence[Address]) -> None:
        """Begin without messages. ``addresses``: where the ranks listen, or will."""
        self._rank, self._addresses, self._pid = rank, addresses, os.getpid()
        self._posted: deque[tuple[Transfer, bool]] = deque()
        self._outgoing: dict[int, Line] = {}
        #: Transfers that wait: for the receiver to listen, for its answer, for a sender's offer, for the tensor itself.
        self._unsent: list[Transfer] = []
        self._offered: dict[tuple[int, int], Transfer] = {}
        self._wanted: list[Transfer] = []
        self._coming: dict[tuple[int, int], Transfer] = {}
        #: What senders have offered and nobody has wanted yet: sender, tag, bytes, number, the line it came by.
        self._offers: list[tuple[int, int, int, int, Line]] = []
        self._gone: set[int] = set()
        self._count, self._is_closed = 0, False
        self._opening = Turns()
        self._endpoint: Endpoint | None = None
        self._thread: Carrier | None = None

    def post(self, transfer: Transfer, *, is_sent: bool) -> None:
        """Begin a transfer, to its peer or from it.

        Raises:
            SharedMemoryError: the system has no descriptors or threads left.

        """
        if self._thread is None:
            self._open()
        try:
            self._posted.append((transfer, is_sent))
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

    def _open(self) -> None:
        turn = self._opening.take()
        try:
            if self._thread is None and not self._is_closed:
                self._start()
        except OSError as error:
            raise SharedMemoryError.of_system(error) from None
        finally:
            turn.release()

    def _start(self) -> None:
        self._endpoint = endpoint = Endpoint(self._addresses[self._rank])
        thread = Carrier(target=self._run, args=(endpoint,), name="treefold mailbox", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no room for another thread
            endpoint.close()
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN)) from None
        except BaseException:  # interrupted, perhaps when the thread was there already: it ends
            self._is_closed = True
            self._wake()
            raise
        self._thread = thread

    def _wake(self) -> None:
        if self._endpoint is not None:
            self._endpoint.wake()

    def _run(self, endpoint: Endpoint) -> None:
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
            transfer, is_sent = self._posted.popleft()
            (self._unsent if is_sent else self._wanted).append(transfer)
        unheard = set[int | None]()  # receivers that began to listen meanwhile get messages in order, in the next turn
        for waiting, begin in ((self._unsent, self._offer), (self._wanted, self._ask)):
            for transfer in list(waiting):
                if waiting is self._unsent and transfer.peer in unheard:
                    continue
                try:
                    begin(transfer)
                except Exception as error:  # noqa: BLE001 - whoever waits for the transfer raises it
                    self._fail(transfer, GroupError.mail_failed(error))
                if transfer in self._unsent:
                    unheard.add(transfer.peer)

    def _patience(self) -> float | None:
        """Return how long nothing can happen without an event."""
        waiting = self._waiting()
        if not waiting:
            return None
        until = min(one.until for one in waiting)
        return _POLL_S if self._unsent else max(0.0, min(until - time.monotonic(), _LONGEST_S))

    def _waiting(self) -> list[Transfer]:
        return [*self._unsent, *self._offered.values(), *self._wanted, *self._coming.values()]

    def _drop_late(self) -> None:
        """Forget transfers that are late, and those that were given up."""
        now = time.monotonic()
        for transfer in [one for one in self._waiting() if one.until <= now or one.is_completed()]:
            self._fail(transfer, DeadlineError.mail(transfer.peer))

    def _fail(self, transfer: Transfer, error: GroupError) -> None:
        for waiting in (self._unsent, self._wanted):
            if transfer in waiting:
                waiting.remove(transfer)
        for key in [key for key, one in self._offered.items() if one is transfer]:
            del self._offered[key]
            self._withdraw(*key)
        for key in [key for key, one in self._coming.items() if one is transfer]:
            del self._coming[key]
        transfer.finish(error)

    def _withdraw(self, receiver: int, number: int) -> None:
        """Tell a receiver that a message which it was offered does not come, so that it can take the next one."""
        line = self._outgoing.get(receiver)
        if line is not None:
            line.post(_NEWS.pack(False, 0, _WITHDRAWN, number))  # noqa: FBT003 - a field

    def _fail_all(self, error: GroupError) -> None:
        for transfer in self._waiting():
            self._fail(transfer, error)

    def _accept(self, endpoint: Endpoint) -> None:
        try:
            connection = endpoint.accept()
        except OSError:  # no descriptor for it, which the next one would not have either
            time.sleep(_POLL_S)
            return
        hello = bytearray(_HELLO.size)
        try:
            if process_at(connection)[1] != os.getuid():
                raise PermissionError
            self._add(Line(connection, memoryview(hello), partial(self._greet, hello)))
        except OSError:
            connection.close()

    def _add(self, line: Line) -> None:
        _known(self._endpoint).selector.register(line.connection, selectors.EVENT_READ, line)

    def _greet(self, hello: bytearray, line: Line) -> None:
        token, rank = _HELLO.unpack(hello)
        if not hmac.compare_digest(token, self._addresses[self._rank].token.encode()):
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
        if not is_tensor and nbytes == _WITHDRAWN:
            self._offers = [offer for offer in self._offers if (offer[0], offer[3]) != (sender, number)]
            waiting = self._coming.pop((sender, number), None)
            if waiting is not None:
                self._wanted.insert(0, waiting)
            return
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

    def _ask(self, transfer: Transfer) -> None:
        """Ask for what is wanted, if it is offered; of several offers of one sender and tag, for the first."""
        offer = next((one for one in self._offers if _fits(transfer, one)), None)
        if offer is None:
            if transfer.peer in self._gone:
                self._fail(transfer, PeerLostError.mail(_known(transfer.peer)))
            return
        self._wanted.remove(transfer)
        if transfer.is_completed():  # it was given up, so the offer is another transfer's
            return
        sender, _, nbytes, number, line = offer
        self._offers.remove(offer)
        transfer.peer = sender
        has_size = nbytes == len(transfer.memory)
        line.post(_ANSWER.pack(number, has_size))
        if has_size:
            self._coming[sender, number] = transfer
        else:
            transfer.finish(CallMismatchError.mail(sender, self._rank, nbytes, len(transfer.memory)))

    def _offer(self, transfer: Transfer) -> None:
        """Offer what is to be sent, if its receiver listens."""
        receiver = _known(transfer.peer)
        if receiver in self._gone:
            self._fail(transfer, PeerLostError.mail(receiver))
            return
        line = self._outgoing.get(receiver) or self._line_to(receiver)
        if line is None or transfer.is_completed():
            return
        self._unsent.remove(transfer)
        self._count += 1
        self._offered[receiver, self._count] = transfer
        line.post(_NEWS.pack(False, transfer.tag, len(transfer.memory), self._count))  # noqa: FBT003 - a field

    def _line_to(self, receiver: int) -> Line | None:
        connection = connect(self._addresses[receiver])
        if connection is None:  # it does not listen yet, or there is no descriptor; tried again until the deadline
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
        receiver = _known(line.peer)
        transfer = self._offered.get((receiver, number))
        if transfer is None:  # it was given up, which the receiver was told
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
        except Exception:  # noqa: BLE001 - whatever came by this line, the others go on
            self._lose(line)

    def _lose(self, line: Line) -> None:
        """Forget a line whose other end is gone, and fail what was under way on it."""
        _known(self._endpoint).selector.unregister(line.connection)
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

    def _end(self, endpoint: Endpoint) -> None:
        while self._posted:
            self._wanted.append(self._posted.popleft()[0])
        self._fail_all(GroupError.closed())
        for key in list(endpoint.selector.get_map().values()):
            if key.data is not None:
                key.data.connection.close()
        endpoint.close()


def _fits(transfer: Transfer, offer: tuple[int, int, int, int, Line]) -> bool:
    return transfer.peer in {None, offer[0]} and transfer.tag == offer[1]


def _known(value: _Value | None) -> _Value:
    assert value is not None  # noqa: S101 - only a wanted transfer and a line without a greeting have no peer
    return value
