"""PyTorch's stores, asked with a deadline that holds: some of their calls wait for ever for a host that is cut off."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
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
    is_over = threading.Event()
    try:
        return ended(lambda: question(is_over), deadline)
    except STORE_ERRORS as error:
        raise ConnectError.store(str(error)) from None
    finally:
        is_over.set()


def ended(work: Callable[[], T], deadline: float) -> T:
    """Return what some work returns by the deadline, in a thread of its own, so that signals are heard meanwhile.

    Raises:
        TimeoutError: it goes on.

    """
    returned, errors = list[T](), list[Exception]()

    def run() -> None:
        try:
            returned.append(work())
        except Exception as error:  # noqa: BLE001 - raised by the thread that waits
            errors.append(error)

    # A daemon: a call into a store that never returns must not keep the process from ending.
    working = threading.Thread(target=run, daemon=True, name="treefold-store")
    working.start()
    working.join(max(deadline - time.monotonic(), 0.0) + _GRACE_S)
    # What was returned first: at the last moment it counts, though the thread may not have ended.
    if returned:
        return returned[0]
    if errors:
        raise errors[0]
    raise TimeoutError(_SILENT)
