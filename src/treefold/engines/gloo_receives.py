"""gloo's receives cannot be asked whether they are done, so threads wait for them."""

from __future__ import annotations

import contextlib
import queue
import time
from concurrent.futures import Future, wait
from datetime import timedelta

from treefold.engines.interface import Transfer
from treefold.engines.side_threads import start_aside
from treefold.engines.times import RETRY_S

_FOREVER = timedelta(days=365)


class GlooReceives:
    """The receives of a channel: a thread waits for those of one way after the other.

    When a connection breaks, gloo does not wake a thread that waits for a message that has come in part. Such a thread
    stays, and with it gloo's own objects of the channel. It holds this object, which keeps nothing once it is closed.
    """

    def __init__(self) -> None:
        """Wait for nothing yet."""
        # A queue between the waiting threads and the one that calls: it is also what makes the received bytes visible
        # to it.
        self._ended = queue.SimpleQueue[Transfer | None]()
        self._ways = dict[tuple[int, int], _Way]()

    def wait_for(self, transfer: Transfer, way: tuple[int, int]) -> None:
        """Wait for a receive that has begun, behind the others of its way; its handle are gloo's own and the tensor."""
        if way not in self._ways:
            self._ways[way] = begun = _Way()
            begun.is_over = start_aside(lambda: self._wait_on(begun))
        self._ways[way].begun.put(transfer)

    def end(self, transfer: Transfer, error: Exception | None = None) -> None:
        """Note the end of a transfer."""
        transfer.error = "" if error is None else str(error) or "the connection is broken"
        self._ended.put(transfer)

    def next_ended(self, deadline: float) -> Transfer | None:
        """Return what has ended; None at the deadline, or when this was closed."""
        with contextlib.suppress(queue.Empty):
            return self._ended.get(timeout=max(deadline - time.monotonic(), 0.0))
        return None

    def close(self, *, are_broken: bool) -> None:
        """Let the threads end: once nothing is under way, or all connections are broken, they do at once.

        ``are_broken``: whether the connections are, and gloo writes no message any more.
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
                # Without the GIL, and without a deadline of its own: one that passed would break the connection for all
                # transfers. Nothing of this thread holds the transfer meanwhile.
                way.under_way.handle[0].wait(_FOREVER)  # type: ignore[union-attr] # it has taken one
            except RuntimeError as problem:
                error = problem
            if transfer := way.under_way:
                transfer.handle = None
                self.end(transfer, error)
            del transfer  # or the next would be waited for with this one's memory


class _Way:
    """The receives that one thread waits for, in turn: those ``begun``, up to None, and the one ``under_way``."""

    def __init__(self) -> None:
        self.begun = queue.SimpleQueue[Transfer | None]()
        self.under_way: Transfer | None = None
        self.is_over: Future[None]

    def take(self) -> bool:
        """Wait for the next receive to begin, and tell whether there is one."""
        self.under_way = None
        self.under_way = self.begun.get()
        return self.under_way is not None

    def forget(self) -> None:
        """Hold no transfer any more."""
        _empty(self.begun)
        self.begun.put(None)
        if (transfer := self.under_way) and (handle := transfer.handle):
            handle[1].set_()  # gloo's own holds the tensor, which leaves its memory so
        self.under_way = None


def _empty(transfers: queue.SimpleQueue[Transfer | None]) -> None:
    with contextlib.suppress(queue.Empty):
        while True:
            transfers.get_nowait()
