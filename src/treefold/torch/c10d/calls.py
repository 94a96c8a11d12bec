"""The collectives of one process group, one at a time and in order, as PyTorch's ``Work``."""

from __future__ import annotations

import collections
import contextlib
import functools
import os
import threading
import time
from collections.abc import Callable
from concurrent import futures
from datetime import timedelta
from typing import Any

import torch
from torch import distributed

from treefold.backends.tracing import untraced
from treefold.engines.times import CLOSE_S
from treefold.errors import DeadlineError, GroupError

_DOING = "a collective"
_Leave = Callable[[BaseException], None]


@untraced
class CollectiveWork(distributed.Work):  # type: ignore[misc] # mypy does not read torch
    """A call that is waiting, under way, or over."""

    def __init__(self, leave: _Leave) -> None:
        """Begin with a call that was not made. ``leave``: ends the group if a wait is interrupted."""
        super().__init__()
        self._leave, self._pid = leave, os.getpid()
        self._end = futures.Future[Any]()
        self._future: Any = None

    def make(self, body: Callable[[], Any]) -> None:
        """Make the call.

        Raises:
            TreefoldError: The error of the call; ``wait`` raises it, too.

        """
        try:
            result = body()
        except BaseException as error:
            self._end.set_exception(error)
            raise
        self._end.set_result(result)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until the call is over. An error that a signal handler raises meanwhile ends the group.

        Raises:
            GroupError: The call has failed, or this process is a forked child.
            DeadlineError: The call is not over in this time, and goes on.

        """
        if not self._end.done():
            if os.getpid() != self._pid:
                raise GroupError(
                    "This process was forked while a call of its parent was under way, and is no rank itself: nothing "
                    "ends the call here. Wait for calls before a fork, or start workers before the group is made."
                )
            seconds = timeout.total_seconds() if timeout else 0.0  # gloo's "no timeout" is 0
            try:
                futures.wait([self._end], seconds if seconds > 0 else None)
            except BaseException as error:  # this rank will not see the end of a call that the others make
                self._leave(error)
                raise
            if not self._end.done():
                raise DeadlineError(
                    f"The call was not over within {seconds:g} s, and goes on: wait for it again, and do not use its "
                    "tensors before. The timeout of the group, or of the call, is when it ends."
                )
        self._end.result()
        return True

    def is_completed(self) -> bool:
        """Return whether the call is over."""
        return self._end.done()

    def is_success(self) -> bool:
        """Return whether the call has succeeded."""
        return self._end.done() and self._end.exception() is None

    def exception(self) -> BaseException | None:
        """Return the error of the call; None if there is none, or not yet."""
        return self._end.exception() if self._end.done() else None

    def get_future(self) -> Any:
        """Return a future of the result, a list of tensors. Its callbacks may wait for other calls."""
        if self._future is None:
            end: Any = torch.futures.Future()
            # An error raised in a callback reaches DDP, which is C++; one of ``set_exception`` reaches Python only.
            self._future = end.then(lambda _: self._end.result())
            self._end.add_done_callback(lambda _: end.set_result(None))
        return self._future

    def result(self) -> Any:
        """Return the tensors that the call has written, in a list."""
        return self._end.result()


class CallQueue:
    """Makes calls in the order in which they come: in a thread of its own, or in the caller's if it waits anyway.

    All ranks make the same calls in the same order. A call that would wait returns at once, so ranks may wait for the
    calls of several groups in any order. Callbacks may wait, too: while one thread runs those of a call, another thread
    makes the next call.
    """

    def __init__(self, leave: _Leave, own_cores: Callable[[], set[int]] = set) -> None:
        """Begin without calls.

        ``leave``: ends the group if a wait is interrupted. ``own_cores``: returns the cores for the threads; an empty
        set: any.
        """
        self._leave, self._own_cores = leave, own_cores
        # Re-entrant: a signal handler may add a call while this thread adds one.
        self._guard = threading.RLock()
        self._waiting = collections.deque[tuple[CollectiveWork, Callable[[], Any]]]()
        #: The number of calls that are not over, and the thread that makes one.
        self._count, self._maker = 0, 0
        self._threads, self._num_idle, self._turn = list[threading.Thread](), 0, threading.Semaphore(0)
        self._is_ended = False

    def add(self, body: Callable[[], Any], *, is_waited_for: bool) -> CollectiveWork:
        """Add a call. If the caller waits for it and no other call is waiting, make it here.

        Raises:
            GroupError: A signal handler or a finalizer has interrupted this very thread's call, and would wait for it.

        """
        call, in_turn = CollectiveWork(self._leave), functools.partial(self._in_turn, body)
        with self._guard:
            # Once the threads have ended, the caller makes the call itself, which raises that the group was left.
            if (is_waited_for or self._is_ended) and self._maker == threading.get_ident():
                raise GroupError.concurrent(_DOING)
            is_made_here = self._is_ended or (is_waited_for and not self._count)
            self._count += 1
            if not is_made_here:
                self._waiting.append((call, in_turn))
                if self._count == 1:
                    self._wake()
        if is_made_here:
            call.make(in_turn)
        return call

    def end(self) -> None:
        """Give waiting calls a moment to end, before the group is closed."""
        until = time.monotonic() + CLOSE_S
        while self._count and self._maker != threading.get_ident() and time.monotonic() < until:
            time.sleep(1e-3)

    def join(self) -> None:
        """Wait a moment for the threads to end, once the group is closed: none may outlive the interpreter."""
        self._is_ended = True
        self._turn.release(len(self._threads) or 1)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(CLOSE_S)

    def _wake(self) -> None:
        if self._num_idle:
            self._num_idle -= 1
        else:
            self._threads.append(threading.Thread(target=self._work, name="treefold collectives", daemon=True))
            self._threads[-1].start()
        self._turn.release()

    def _in_turn(self, body: Callable[[], Any]) -> Any:
        self._maker = threading.get_ident()
        try:
            return body()
        finally:
            with self._guard:
                self._maker, self._count = 0, self._count - 1
                if self._waiting:
                    self._wake()

    def _work(self) -> None:
        if cores := self._own_cores():
            with contextlib.suppress(OSError):  # the system has taken them away meanwhile
                os.sched_setaffinity(0, cores)  # of this thread
        while self._turn.acquire() and self._waiting:
            call, body = self._waiting.popleft()
            with contextlib.suppress(BaseException):  # ``wait`` raises that
                call.make(body)
            del call, body
            with self._guard:
                self._num_idle += 1
