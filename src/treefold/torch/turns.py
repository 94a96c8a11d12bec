"""A lock that threads get in the order in which they asked for it."""

from __future__ import annotations

import threading
from collections import deque
from types import TracebackType

from treefold.errors import GroupError

_DOING = "a collective"


class Turns:
    """Lets one thread at a time pass, first come, first served.

    Every rank has to make the calls of a group in the same order. Python's own locks promise none, and DDP calls from
    autograd's threads.
    """

    def __init__(self) -> None:
        """Begin with nobody waiting."""
        self._guard = threading.RLock()  # a signal handler may interrupt its own thread here
        #: Whose turn it is comes first; each waits at a lock of its own.
        self._queue: deque[tuple[int, threading.Lock]] = deque()

    def __enter__(self) -> None:
        """Wait for this thread's turn.

        Raises:
            GroupError: it is this thread's turn already, so a signal handler or a finalizer has interrupted it.

        """
        own = threading.Lock()
        own.acquire()
        entry = (threading.get_ident(), own)
        with self._guard:
            if self._queue and self._queue[0][0] == entry[0]:
                raise GroupError.concurrent(_DOING)
            self._queue.append(entry)
            is_first = len(self._queue) == 1
        if not is_first:
            self._wait(entry)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let the next one pass."""
        with self._guard:
            self._queue.popleft()
            self._wake()

    def _wait(self, entry: tuple[int, threading.Lock]) -> None:
        try:
            entry[1].acquire()
        except BaseException:  # Ctrl-C: whoever waits behind must not wait for ever
            with self._guard:
                was_first = self._queue[0] is entry
                self._queue.remove(entry)
                if was_first:
                    self._wake()
            raise

    def _wake(self) -> None:
        if self._queue:
            self._queue[0][1].release()
