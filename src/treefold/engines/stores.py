"""PyTorch's stores, and users' own: calls with a deadline that holds, and steps that ranks take together.

Calls into C++ that hear no signals, and may never return, are made by side threads. A process that ends waits a little
for those threads: Python aborts if such a call returns to it while the interpreter ends.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from typing import Any, NamedTuple, TypeVar

from treefold.engines.times import CLOSE_S, GRACE_PERIOD_S, RETRY_S
from treefold.errors import ConnectError

#: Names the network interfaces that gloo uses.
INTERFACES = "GLOO_SOCKET_IFNAME"
T = TypeVar("T")

_SILENT = "it has not answered by the deadline"
#: Parts of PyTorch's messages for a store, written in Python, that lacks a method.
_LACKING = ("Not implemented", "pure virtual function")


#: The threads that are under way, each with a function that ends it; those that have ended stay until the next begins.
_under_way: dict[threading.Thread, Callable[[], object]] = {}


def start_aside(work: Callable[[], T], end: Callable[[], object] = lambda: None) -> Future[T]:
    """Run ``work`` in a thread of its own and return its future; ``end`` is called when the process ends."""
    answer = Future[T]()

    def run() -> None:
        try:
            answer.set_result(work())
        except Exception as error:  # noqa: BLE001 - raised by the thread that waits
            answer.set_exception(error)

    # A daemon: a call that never returns must not keep the process from ending.
    thread = threading.Thread(target=run, daemon=True, name="treefold-side")
    thread.start()
    # Threads that have ended are forgotten here, and not by themselves: after ``run`` has returned, a thread may still
    # be the last owner of gloo's group, and end it.
    for over in [one for one in list(_under_way) if not one.is_alive()]:
        _under_way.pop(over, None)
    _under_way[thread] = end
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


def interfaces() -> list[str]:
    """Return the network interfaces that the user has named for gloo."""
    return [name for name in os.environ.get(INTERFACES, "").split(",") if name]


def asked(question: Callable[[], T], deadline: float) -> T:
    """Return the answer of a store by the deadline, a moment of the monotonic clock.

    Another thread calls the store: some calls of PyTorch's stores wait for ever for a host that is cut off, and hear no
    signals.

    Raises:
        ConnectError: There is no answer, or the store has raised an error.

    """

    def ask() -> T:
        with in_words():
            return question()

    answer = start_aside(ask)
    # Not the future's own deadline: it raises TimeoutError, as a signal handler of the user's may, too.
    wait([answer], max(deadline - time.monotonic(), 0.0))
    if not answer.done():
        raise ConnectError.store(_SILENT)
    return answer.result()


@contextlib.contextmanager
def in_words() -> Iterator[None]:
    """Raise the errors of a store as ConnectError; users' own stores have exception classes of their own."""
    try:
        yield
    except ConnectError:
        raise
    except Exception as error:  # noqa: BLE001 - nothing of ours runs here
        if any(words in str(error) for words in _LACKING):
            raise ConnectError(
                "The group did not form: the store lacks set, get or check, by which ranks find each other. "
                "Use PyTorch's TCPStore, FileStore or HashStore, or write what is missing."
            ) from None
        raise ConnectError.store(traceback.format_exception_only(error)[0]) from None


class Meeting(NamedTuple):
    """Ranks that take the same steps together, through keys of a store that begin with ``name``.

    ``began``: when this rank began to connect, on the monotonic clock.
    """

    store: Any
    name: str
    rank: int
    size: int
    began: float

    def exchange(self, step: str, said: bytes, deadline: float) -> list[bytes]:
        """Leave bytes in the store, and return the bytes that each rank has left there, by rank.

        Raises:
            ConnectError: Some ranks have left nothing by the deadline, or a rank has given up.

        """
        keys, until = [self._key(f"{step}/{rank}") for rank in range(self.size)], deadline + GRACE_PERIOD_S
        asked(lambda: self.store.set(keys[self.rank], said), until)
        while not asked(lambda: self._are_there(keys), until):
            if time.monotonic() >= deadline:
                absent = asked(lambda: [rank for rank, key in enumerate(keys) if not self.store.check([key])], until)
                if absent:  # or the last has come just now
                    raise ConnectError.late(absent, time.monotonic() - self.began)
            time.sleep(RETRY_S)
        return asked(lambda: [self.store.get(key) for key in keys], until)

    def give_up(self, error: BaseException) -> None:
        """Tell the others that this rank does not go on, and why."""
        with contextlib.suppress(ConnectError):  # then they find out by their own deadlines
            asked(lambda: self.end(error), time.monotonic() + GRACE_PERIOD_S)

    def end(self, error: BaseException) -> None:
        """Leave the reason why the meeting is over, unless there is one already."""
        if not self.store.check([self._key("over")]):
            self.store.set(self._key("over"), json.dumps(ConnectError.reason(self.rank, error)))

    def is_past(self) -> bool:
        """Return whether a process of this rank has come already, or the meeting is over."""
        return any(self.store.check([self._key(what)]) for what in (f"here/{self.rank}", "over"))

    def raise_if_over(self) -> None:
        """Raise the error that has ended the meeting, if there is one."""
        if self.store.check([self._key("over")]):
            raise ConnectError.announced(*json.loads(self.store.get(self._key("over"))))

    def _are_there(self, keys: list[str]) -> bool:
        """Return whether all keys are there; raise if they are not and the meeting is over."""
        # Keys first: a rank that is ahead may have ended the meeting when it had already become a group.
        if not self.store.check(keys):
            self.raise_if_over()
            return False
        return True

    def _key(self, what: str) -> str:
        return f"{self.name}/{what}"
