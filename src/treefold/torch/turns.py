"""A lock that threads get in the order in which they asked for it, and that an interrupt cannot leave locked."""

from __future__ import annotations

import threading
from typing import Any

from treefold.errors import GroupError

_DOING = "a collective"


class Turn:
    """The turn of one thread, which holds the turn's lock until it calls ``release``."""

    __slots__ = ("before", "lock", "release")

    def __init__(self) -> None:
        """Begin with a lock that nobody holds."""
        # Re-entrant locks belong to a thread, and tell which.
        self.lock: Any = threading.RLock()
        #: Ends the turn. It is a function in C: a signal handler runs before it or after it, and never in between.
        self.release = self.lock.release
        #: The turn before, if the thread of this one gave up waiting for it.
        self.before: Turn | None = None


class Turns:
    """Lets one thread at a time pass, first come, first served.

    Every rank has to make the calls of a group in the same order. Python's own locks promise none, and DDP calls from
    autograd's threads. Each thread waits for the lock of the turn before its own (the queue of Craig, Landin and
    Hagersten), so that whoever leaves, at whatever moment, has one lock to release and no queue to mend.
    """

    def __init__(self) -> None:
        """Begin with nobody waiting."""
        self._guard = threading.Lock()
        self._last: Turn | None = None
        self._own = threading.local()

    def check(self) -> None:
        """Check that this thread may ask for a turn.

        Raises:
            GroupError: it has one, or waits for one, so a signal handler or a finalizer has interrupted it.

        """
        latest = getattr(self._own, "turn", None)
        if latest is not None and latest.lock._is_owned():  # noqa: SLF001 - as threading.Condition asks
            raise GroupError.concurrent(_DOING)

    def take(self) -> Turn:
        """Wait for a turn of this thread, and return it; call ``release`` in a ``finally`` that directly follows.

        Call ``check`` before. Whatever this raises, a signal handler has raised: the thread has no turn.
        """
        own, before = Turn(), None
        own.lock.acquire()
        try:
            # Before the turn stands in the queue: a signal handler of this thread must not queue behind it.
            self._own.turn = own
            with self._guard:
                before, self._last = self._last, own
            turn = before
            while turn is not None:
                with turn.lock:
                    pass  # released at once: an interrupt after this must not leave another turn's lock held
                turn = turn.before
        except BaseException:  # Ctrl-C: whoever is behind waits for the turn that this thread has waited for
            own.before = before
            own.lock.release()
            raise
        return own
