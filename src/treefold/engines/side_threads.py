"""Threads for calls into C++ that hear no signals, and may never return; a process that ends waits for them a little.

Python aborts if such a call comes back to it while the interpreter ends.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from treefold.engines.times import CLOSE_S

T = TypeVar("T")

#: The threads that are under way, each with a function that ends it.
_under_way: dict[threading.Thread, Callable[[], object]] = {}


def start_aside(work: Callable[[], T], end: Callable[[], object] = lambda: None) -> Future[T]:
    """Do some work in a thread of its own, and return its future result. ``end`` is called as the process ends."""
    answer = Future[T]()

    def run() -> None:
        try:
            answer.set_result(work())
        except Exception as error:  # noqa: BLE001 - raised by the thread that waits
            answer.set_exception(error)
        finally:
            _under_way.pop(thread, None)

    # A daemon: a call that never returns must not keep the process from ending.
    thread = threading.Thread(target=run, daemon=True, name="treefold-side")
    _under_way[thread] = end
    thread.start()
    return answer


@atexit.register
def _end() -> None:
    # After a fork the threads of the parent are not alive.
    under_way = [(thread, end) for thread, end in list(_under_way.items()) if thread.is_alive()]
    for _, end in under_way:
        end()
    until = time.monotonic() + CLOSE_S
    for thread, _ in under_way:
        thread.join(max(until - time.monotonic(), 0.0))
