"""PyTorch's stores, asked with a deadline that holds: some of their calls wait for ever for a host that is cut off."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

from treefold.errors import ConnectError

#: Names the network interfaces that gloo uses.
INTERFACES = "GLOO_SOCKET_IFNAME"
T = TypeVar("T")

#: What stores raise: PyTorch's are RuntimeErrors, those of users' own stores may be the system's.
STORE_ERRORS = (RuntimeError, OSError)
#: A question that ends at the deadline by itself is not cut off.
_GRACE_S = 0.2
_SILENT = "it has not answered by the deadline"


def interfaces() -> list[str]:
    """Return the network interfaces that the user has named for gloo."""
    return [name for name in os.environ.get(INTERFACES, "").split(",") if name]


def asked(question: Callable[[threading.Event], T], deadline: float) -> T:
    """Return what a store answers by the deadline, a moment of the monotonic clock.

    A question that is never answered keeps its thread and the store's client for good. It is told by its argument once
    nobody waits for the answer, as after Ctrl-C: it has then to leave the store as if it had not been asked.

    Raises:
        ConnectError: there is no answer, or the store has failed.

    """
    answer, is_over = Future[T](), threading.Event()
    try:
        start(lambda: question(is_over), answer)
        return answer.result(max(deadline - time.monotonic(), 0.0) + _GRACE_S)
    except ConnectError:
        raise
    except STORE_ERRORS as error:
        raise ConnectError.store(str(error) or _SILENT) from None
    finally:
        is_over.set()
        wait([answer], _GRACE_S)  # what it takes back is gone before the caller, or the process, goes on


def start(work: Callable[[], T], answer: Future[T]) -> None:
    """Let a thread of its own find the answer, so that signals are heard meanwhile."""

    def run() -> None:
        try:
            answer.set_result(work())
        except Exception as error:  # noqa: BLE001 - raised by the thread that waits
            answer.set_exception(error)

    # A daemon: a call into a store that never returns must not keep the process from ending.
    threading.Thread(target=run, daemon=True, name="treefold-store").start()
