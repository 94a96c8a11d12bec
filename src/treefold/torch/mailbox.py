"""Messages between two ranks of a process group, outside the order of its collectives.

For each ordered pair of ranks there is one connection, which is opened when one first sends to or receives from the
other: the bytes that it holds are the bound of the mailbox, and its end is that of the rank. A sender offers a tensor
by its tag and size, and sends it when the receiver has asked for it, so that nothing is kept for which there is no
place. A thread of its own makes all of a rank's transfers progress, also while the rank computes or is in a collective.
"""

from __future__ import annotations

import math
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Sequence

from treefold.errors import DeadlineError, GroupError, ProcessGroupError
from treefold.torch.addresses import Address, Endpoint
from treefold.torch.inbox import Inbox
from treefold.torch.lines import Line
from treefold.torch.outbox import Outbox
from treefold.torch.peers import Peers
from treefold.torch.transfers import Transfer

#: How long until what could not be done at once is tried again, and the longest wait of all.
_POLL_S, _LONGEST_S = 0.01, 3600.0


class Mailbox:
    """What a rank sends to and receives from single other ranks. It opens with the first message."""

    def __init__(self, rank: int, addresses: Sequence[Address], listener: socket.socket) -> None:
        """Begin without messages. ``addresses``: where the ranks listen; ``listener``: this rank's socket there."""
        self._rank, self._addresses, self._listener, self._pid = rank, addresses, listener, os.getpid()
        self._posted: deque[Transfer] = deque()
        self._inbox, self._outbox = Inbox(rank), Outbox(rank)
        # Nothing of this refers to the mailbox: what a group has opened goes with it, not when garbage is collected.
        self._peers = Peers(rank, addresses, reached=self._outbox.expect_answer, greeted=self._inbox.expect_news)
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
        try:
            if self._thread not in {None, threading.current_thread()}:
                self._thread.join()
        finally:  # also after Ctrl-C: this rank is gone for the others when it does not listen any more
            self._listener.close()

    def _open(self) -> None:
        """Start a thread. It takes the mailbox over itself, so that an interrupt leaves nothing half done here."""
        try:
            endpoint = Endpoint(self._listener)
        except OSError as error:
            raise GroupError.no_mail(error) from None
        try:
            threading.Thread(target=self._run, args=(endpoint,), name="treefold mailbox", daemon=True).start()
        except RuntimeError as error:
            # Ctrl-C while ``start`` waited for the thread, which has the endpoint now.
            if error.__context__ is not None:
                raise error.__context__ from None
            endpoint.close()  # no room for another thread
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
                    self._reach(endpoint)
                    for line in self._peers.progress(endpoint, self._patience()):
                        self._lose(line.rank, line)
                    self._drop_late()
                except Exception as error:  # noqa: BLE001 - later messages must not wait for a thread that has ended
                    self._fail_all(GroupError.mail_failed(error))
                    time.sleep(_POLL_S)
        finally:
            self._is_closed = True
            self._end(endpoint)

    def _begin_posted(self) -> None:
        while self._posted:
            transfer = self._posted.popleft()
            try:
                self._begin(transfer)
            except Exception as error:  # noqa: BLE001 - whoever waits for the transfer raises it
                self._fail(transfer, GroupError.mail_failed(error))

    def _reach(self, endpoint: Endpoint) -> None:
        """Offer what waits for ranks that are reached now, and fail what waits for those that are gone."""
        for peer, line in self._peers.seek(endpoint):
            if line is None:
                self._lose(peer)
            else:
                self._outbox.offer(line)

    def _begin(self, transfer: Transfer) -> None:
        if transfer.is_completed():
            self._forget(transfer)
            return
        self._look_at = min(self._look_at, transfer.until)
        peer = transfer.wanted[0]
        if peer is not None:
            self._peers.seek_for(peer, is_sent=transfer.is_sent)
        if peer is not None and transfer.is_sent:
            self._outbox.add(peer, transfer)
        else:
            self._inbox.want(transfer)

    def _patience(self) -> float:
        """Return how long nothing can happen without an event."""
        return _POLL_S if self._peers.sought else max(0.0, min(self._look_at - time.monotonic(), _LONGEST_S))

    def _waiting(self) -> list[Transfer]:
        return self._outbox.waiting() + self._inbox.waiting()

    def _drop_late(self) -> None:
        """Fail transfers that are late. All of them are looked at, so seldom."""
        now = time.monotonic()
        if now < self._look_at:
            return
        for transfer in self._waiting():
            if transfer.until <= now:
                refused = self._peers.refused(transfer.peer, is_sent=transfer.is_sent)
                self._fail(transfer, DeadlineError.mail(transfer.peer, refused))
        left = self._waiting()
        self._peers.sought.intersection_update(one.wanted[0] for one in left)
        self._look_at = max(now + _POLL_S, min((one.until for one in left), default=math.inf))

    def _fail(self, transfer: Transfer, error: GroupError) -> None:
        transfer.finish(error)
        self._forget(transfer)

    def _forget(self, transfer: Transfer) -> None:
        """Forget a transfer that has ended early."""
        peer = transfer.wanted[0]
        if peer is not None and transfer.is_sent:
            self._outbox.forget(peer, transfer)
        else:
            self._inbox.forget(transfer)

    def _lose(self, peer: int, line: Line | None = None) -> None:
        """Fail what was under way to or from a rank that is gone; ``line``: a connection that has ended."""
        self._outbox.lose(peer)
        self._inbox.lose(peer, line)

    def _fail_all(self, error: GroupError) -> None:
        for transfer in self._waiting():
            self._fail(transfer, error)

    def _end(self, endpoint: Endpoint) -> None:
        for transfer in (*self._waiting(), *self._posted):
            transfer.finish(GroupError.closed())
        for line in endpoint.lines():
            line.connection.close()
        endpoint.close()
