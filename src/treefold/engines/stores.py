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


def interfaces() -> list[str]:
    """Return the network interfaces that the user has named for gloo."""
    return [name for name in os.environ.get(INTERFACES, "").split(",") if name]


def asked(question: Callable[[], T], deadline: float) -> T:
    """Return what a store answers by the deadline, a moment of the monotonic clock.

    A question that is never answered keeps its thread and the store's client for good.

    Raises:
        ConnectError: there is no answer, or the store has failed.

    """
    answers, errors = list[T](), list[Exception]()

    def ask() -> None:
        try:
            answers.append(question())
        except Exception as error:  # noqa: BLE001 - raised by the thread that asks
            errors.append(error)

    # A daemon: a call into the store that never returns must not keep the process from ending.
    asking = threading.Thread(target=ask, daemon=True, name="treefold-store")
    asking.start()
    asking.join(max(deadline - time.monotonic(), 0.0) + _GRACE_S)
    # Answers first: one that came at the last moment counts, though the thread may not have ended.
    if answers:
        return answers[0]
    if errors and not isinstance(errors[0], STORE_ERRORS):
        raise errors[0]
    raise ConnectError.store(str(errors[0]) if errors else "it has not answered by the deadline")
