"""Threads for calls into C++ that may wait for ever and hear no signals; a process that ends waits for them."""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")

#: How long the process waits for these threads when it ends.
_END_S = 1.5
#: Those that are under way, and what tells each of them to end.
_under_way: dict[threading.Thread, threading.Event] = {}
_is_ending = threading.Event()


def start_aside(work: Callable[[], T], answer: Future[T], is_over: threading.Event) -> None:
    """Let a thread of its own find the answer, so that signals are heard meanwhile; ``is_over`` tells it to end.

    A process that ends waits a little for the thread, and gets no answers any more: whatever waits for them ends with
    it.
    """

    def run() -> None:
        try:
            found = work()
            if not _is_ending.is_set():
                answer.set_result(found)
        except Exception as error:  # noqa: BLE001 - raised by the thread that waits
            if not _is_ending.is_set():
                answer.set_exception(error)
        finally:
            del _under_way[thread]

    # A daemon: a call that never returns must not keep the process from ending.
    thread = threading.Thread(target=run, daemon=True, name="treefold-side")
    if not _is_ending.is_set():
        _under_way[thread] = is_over
        thread.start()


@atexit.register
def _end() -> None:
    """End what is under way: Python aborts when C++ comes back to it while it ends."""
    _is_ending.set()
    until = time.monotonic() + _END_S
    # After a fork those of the parent are not alive.
    under_way = [(thread, is_over) for thread, is_over in list(_under_way.items()) if thread.is_alive()]
    for _, is_over in under_way:
        is_over.set()
    for thread, _ in under_way:
        thread.join(max(until - time.monotonic(), 0.0))
