"""PyTorch's stores, asked with a deadline that holds: some of their calls wait for ever for a host that is cut off."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from treefold.engines.side_threads import start_aside
from treefold.errors import ConnectError

#: Names the network interfaces that gloo uses.
INTERFACES = "GLOO_SOCKET_IFNAME"
T = TypeVar("T")

#: A question that ends at the deadline by itself is not cut off.
_GRACE_S = 0.2
#: How much longer a store may take that answers slowly.
SLOW_S = 3.0
_SILENT = "it has not answered by the deadline"
#: What PyTorch says of a store, written in Python, that lacks a method.
_LACKING = ("Not implemented", "pure virtual function")


class CheckedStore:
    """What ranks ask one of PyTorch's stores, or a user's own: whatever that raises is a ConnectError."""

    def __init__(self, store: Any) -> None:
        """Use a store that outlives this object."""
        self.store = store

    def set(self, key: str, value: bytes | str) -> None:
        """Keep a value."""
        with in_words():
            self.store.set(key, value)

    def get(self, key: str) -> bytes:
        """Return a value that is there."""
        with in_words():
            value: bytes = self.store.get(key)
            return value

    def check(self, keys: Sequence[str]) -> bool:
        """Tell whether all keys are there."""
        with in_words():
            return bool(self.store.check(keys))

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        """Set a value if it is as expected, where a missing one is empty; return what it is then."""
        with in_words():
            value: bytes = self.store.compare_set(key, expected, desired)
            return value

    def delete_key(self, key: str) -> None:
        """Forget a value; not every store can."""
        with in_words():
            self.store.delete_key(key)


@contextlib.contextmanager
def in_words() -> Iterator[None]:
    """Raise as a ConnectError what a store raises; users' own stores have exception classes of their own."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - nothing of ours runs here
        if any(words in str(error) for words in _LACKING):
            raise ConnectError.unfit_store() from None
        raise ConnectError.store(traceback.format_exception_only(error)[0]) from None


def interfaces() -> list[str]:
    """Return the network interfaces that the user has named for gloo."""
    return [name for name in os.environ.get(INTERFACES, "").split(",") if name]


def asked(question: Callable[[threading.Event], T], deadline: float, is_slow: Callable[[], bool] = lambda: False) -> T:
    """Return what a store answers by the deadline, a moment of the monotonic clock.

    ``is_slow`` tells, at the deadline, whether the store answers, and needs longer for what is then still to do.
    A question that is never answered keeps its thread and the store's client for good. It is told by its argument once
    nobody waits for the answer, as after Ctrl-C: it has then to leave the store as if it had not been asked.

    Raises:
        ConnectError: there is no answer, or the question raises it.

    """
    answer, is_over = Future[T](), threading.Event()
    try:
        start_aside(lambda: question(is_over), answer, is_over)
        # Not the future's own deadline: it raises what a handler of the user's may raise as well.
        wait([answer], max(deadline - time.monotonic(), 0.0) + _GRACE_S)
        if is_slow():
            wait([answer], SLOW_S)
        if not answer.done():
            raise ConnectError.store(_SILENT)
        return answer.result()
    finally:
        is_over.set()
        wait([answer], _GRACE_S)  # what it takes back is gone before the caller, or the process, goes on
