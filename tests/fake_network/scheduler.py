"""Ranks as threads of which one runs at a time, in virtual time, in an order that a seed draws."""

from __future__ import annotations

import _thread
import heapq
import itertools
import math
import os
import threading
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from fake_network.errors import HangError


class _Worker:
    """A thread that serves one run after the other: starting one costs more than most runs."""

    def __init__(self) -> None:
        self.turn = _thread.allocate_lock()
        self.turn.acquire()
        self.task: Callable[[], None] | None = None
        threading.Thread(target=self._work, name="fake rank", daemon=True).start()

    def _work(self) -> None:
        while True:
            self.turn.acquire()
            task, self.task = self.task, None
            if task is not None:
                task()
            del task  # it holds on to everything of its run


_idle: list[_Worker] = []
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_idle.clear)


class Scheduler:
    """Runs one thread per rank. A thread keeps the baton until it waits, or ends; then a seed draws the next one.

    Time stands still while any thread can go on. When none can, the earliest event happens, which may let some go on.
    """

    def __init__(self, size: int, random: Random) -> None:
        """Start at 0, with nothing to happen."""
        self.now = 0.0
        #: What ends the run: a defect of the code under test, or a hang.
        self.failure: BaseException | None = None
        self._size, self._random = size, random.random
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = itertools.count()
        self._ready: list[int] = []
        self._waiting: dict[int, Callable[[], str]] = {}
        #: Ranks that nothing will ever wake, which is no hang.
        self._stopped: set[int] = set()
        self._workers: list[_Worker] = []
        self._over = _thread.allocate_lock()

    def at(self, when: float, action: Callable[..., None], *arguments: object) -> None:
        """Schedule an event at a time; never, if that is infinity. Events of one time happen in this order."""
        if when < math.inf:
            heapq.heappush(self._events, (max(when, self.now), next(self._order), action, arguments))

    def wait(self, rank: int, doing: Callable[[], str], *, forever: bool = False) -> None:
        """Let others run until somebody wakes this rank, which may be for another reason than it waits for.

        Raises:
            SystemExit: the run is over.

        """
        self._waiting[rank] = doing
        if forever:
            self._stopped.add(rank)
        chosen = self._choose()
        if chosen != rank:
            self._workers[chosen].turn.release()
            self._workers[rank].turn.acquire()
        if self.failure is not None:
            raise SystemExit

    def wake(self, rank: int) -> None:
        """Let a rank go on that waits."""
        if self._waiting.pop(rank, None) is not None:
            self._stopped.discard(rank)
            self._ready.append(rank)

    def fail(self, error: BaseException) -> None:
        """End the run with this error; the first one counts."""
        self.failure = self.failure or error
        for rank in list(self._waiting):
            self.wake(rank)

    def run(self, tasks: Sequence[Callable[[], None]]) -> None:
        """Run all tasks to their ends, a thread for each.

        Raises:
            HangError: no rank can go on, and nothing will happen.

        """
        self._workers = [_idle.pop() if _idle else _Worker() for _ in tasks]
        for rank, (worker, task) in enumerate(zip(self._workers, tasks, strict=True)):
            worker.task = self._ending(task)
            self._ready.append(rank)
        self._over.acquire()
        self._workers[self._choose()].turn.release()
        try:
            self._over.acquire()
        except BaseException as interrupt:
            self.failure = interrupt  # ends each rank at its next call
            raise
        self._over.release()
        _idle.extend(self._workers)
        if self.failure is not None:
            raise self.failure

    def _ending(self, task: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            task()
            if self._ready or self._waiting:
                self._workers[self._choose()].turn.release()
            else:
                self._over.release()

        return run

    def _choose(self) -> int:
        """Return the rank that runs next, after as many events as it takes for one to be able to."""
        ready = self._ready
        while not ready:
            if self._events:
                self.now, _, action, arguments = heapq.heappop(self._events)
                try:
                    action(*arguments)
                except Exception as error:  # noqa: BLE001 - it is not the rank's whose thread this happens to be
                    self.fail(error)
            else:
                self._end_waits()
        if len(ready) == 1:
            return ready.pop()
        return ready.pop(int(self._random() * len(ready)))

    def _end_waits(self) -> None:
        """Wake all: those that stopped for ever, if they are all that is left, else for a hang."""
        if len(self._stopped) < len(self._waiting):
            waits = {rank: doing() for rank, doing in sorted(self._waiting.items())}
            self.fail(HangError.of_ranks(self.now, waits))
        for rank in list(self._waiting):
            self.wake(rank)
