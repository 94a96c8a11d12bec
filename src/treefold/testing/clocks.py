"""Clocks for threads that wait for each other and for the time: a real one, and one that needs no time to pass."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from typing import Protocol


class Clock(Protocol):
    """The clock of emulated devices. A thread that enters must leave, and wait only through its clock."""

    def now(self) -> float:
        """Return seconds since some moment."""

    def enter(self, count: int) -> None:
        """Count so many threads as running, before they start."""

    def leave(self) -> None:
        """Count the calling thread as done."""

    def sleep_until(self, when: float) -> None:
        """Return at that time, or at once if it is past."""

    def wait(self, event: threading.Event) -> None:
        """Return when somebody wakes this event."""

    def wake(self, event: threading.Event) -> None:
        """Let the one thread that waits for this event go on."""


class RealClock:
    """Seconds as they pass."""

    def now(self) -> float:
        """Return the seconds of a clock that is never set."""
        return time.perf_counter()

    def enter(self, count: int) -> None:
        """Do nothing: time passes whoever runs."""

    def leave(self) -> None:
        """Do nothing."""

    def sleep_until(self, when: float) -> None:
        """Sleep, by as much as the operating system makes of it."""
        left = when - time.perf_counter()
        if left > 0:
            time.sleep(left)

    def wait(self, event: threading.Event) -> None:
        event.wait()

    def wake(self, event: threading.Event) -> None:
        event.set()


class VirtualClock:
    """Time that jumps to the next thing to happen whenever all threads wait: no machine is too busy for it.

    Threads run as they do by a real clock, on real arrays; only what they do takes no time.

    >>> clock = VirtualClock()
    >>> clock.enter(1)
    >>> clock.sleep_until(3600.0)
    >>> clock.now()
    3600.0
    """

    def __init__(self) -> None:
        """Start at 0."""
        self._lock = threading.Lock()
        self._now, self._running = 0.0, 0
        self._asleep: list[tuple[float, int, threading.Event]] = []
        self._order = itertools.count()

    def now(self) -> float:
        """Return the time of what happened last."""
        return self._now

    def enter(self, count: int) -> None:
        """Let no time pass before these threads wait."""
        with self._lock:
            self._running += count

    def leave(self) -> None:
        """Let time pass if this was the last one that ran."""
        with self._lock:
            self._running -= 1
            self._jump()

    def sleep_until(self, when: float) -> None:
        """Wait until all others wait for something later."""
        event = threading.Event()
        with self._lock:
            if when <= self._now:
                return
            heapq.heappush(self._asleep, (when, next(self._order), event))
            self._running -= 1
            self._jump()
        event.wait()

    def wait(self, event: threading.Event) -> None:
        """Wait, without holding up the time."""
        with self._lock:
            self._running -= 1
            self._jump()
        event.wait()

    def wake(self, event: threading.Event) -> None:
        """Count the thread as running again before it runs, so that no time passes in between."""
        with self._lock:
            self._running += 1
        event.set()

    def _jump(self) -> None:
        if self._running or not self._asleep:
            return
        self._now = self._asleep[0][0]
        while self._asleep and self._asleep[0][0] <= self._now:
            self._running += 1
            heapq.heappop(self._asleep)[2].set()
