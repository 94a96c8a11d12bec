"""PyTorch's stores, asked with a deadline that holds: some of their calls wait for ever for a host that is cut off."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from treefold.errors import ConnectError

T = TypeVar("T")

#: What stores raise: PyTorch's are RuntimeErrors, those of users' own stores may be the system's.
STORE_ERRORS = (RuntimeError, OSError)
#: A question that ends at the deadline by itself is not cut off.
_GRACE_S = 0.05


def asked(question: Callable[[], T], deadline: float) -> T:
    """Return what a store answers by the deadline, a moment of the monotonic clock.

    A question without an answer stays with its thread, and with the store's client.

    Raises:
        ConnectError: there is no answer, or the store has failed.

    """
    answers, problems = list[T](), list[str]()

    def ask() -> None:
        try:
            answers.append(question())
        except STORE_ERRORS as error:
            problems.append(str(error).partition("\n")[0] or type(error).__name__)

    asking = threading.Thread(target=ask, daemon=True, name="treefold-store")
    asking.start()
    asking.join(max(deadline - time.monotonic(), 0.0) + _GRACE_S)
    if answers:
        return answers[0]
    raise ConnectError.store(problems[0] if problems else "it has not answered by the deadline")
