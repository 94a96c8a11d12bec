"""The collectives of one process group, one at a time and in order, as PyTorch's work."""

from __future__ import annotations

import collections
import contextlib
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import torch
from torch import distributed

from treefold.backends.torch_untraced import untraced
from treefold.engines.times import CLOSE_S
from treefold.errors import DeadlineError, GroupError

#: How long a thread sleeps that waits, before it looks again whether the call is over.
_LOOK_S = 1.0
_DOING = "a collective"
#: At most this many callbacks wait for others at a time.
_MOST_CALLBACKS = 1000
_Leave = Callable[[BaseException], None]


@untraced
class Call(distributed.Work):  # type: ignore[misc] # mypy does not read torch
    """A call that waits, is under way, or is over."""

    def __init__(self, body: Callable[[], Any], leave: _Leave) -> None:
        """Begin with a call that was not made. ``leave``: ends the group where a wait is interrupted."""
        super().__init__()
        self._body: Callable[[], Any] | None = body
        self._leave, self._pid = leave, os.getpid()
        # Let go when the call is over. A bare lock, because an interrupt within an Event may leave that locked.
        self._running = threading.Lock()
        self._running.acquire()
        self._guard = threading.Lock()
        self._is_over = False
        self._result: Any = None
        self._error: BaseException | None = None
        #: What is set when the call is over, and what becomes of that, which users get.
        self._end: Any = None
        self._future: Any = None

    def make(self) -> None:
        """Make the call.

        Raises:
            TreefoldError: one of its kinds, which ``wait`` raises, too.

        """
        try:
            if self._body is not None:
                self._result = self._body()
        except BaseException as error:
            self._error = error
            raise
        finally:
            self._body = None  # it holds tensors
            with self._guard:
                self._is_over, end = True, self._end
            self._running.release()
            if end is not None:
                _call_back(end)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until the call is over. Whatever a signal handler raises meanwhile ends the group.

        Raises:
            GroupError: the call has failed, or this process is a forked child.
            DeadlineError: it is not over in this time, and goes on.

        """
        if os.getpid() != self._pid and not self._is_over:
            raise GroupError.forked_in_call()
        seconds = timeout.total_seconds() if timeout else 0.0  # gloo's "no timeout" is 0
        try:
            is_over = self._ends_in(seconds if seconds > 0 else float("inf"))
        except BaseException as error:  # this rank does not see the end of the call that the others make
            self._leave(error)
            raise
        if not is_over:
            raise DeadlineError.of_wait(seconds)
        if self._error is not None:
            raise self._error
        return True

    def _ends_in(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while not self._is_over:
            left = until - time.monotonic()
            if left <= 0:
                return False
            # Not longer: another thread that waits may have been interrupted when it had the lock.
            if self._running.acquire(timeout=min(left, _LOOK_S)):
                self._running.release()
        return True

    def is_completed(self) -> bool:
        """Tell whether the call is over."""
        return self._is_over

    def is_success(self) -> bool:
        """Tell whether the call has ended well."""
        return self._is_over and self._error is None

    def exception(self) -> BaseException | None:
        """Return what the call has raised, if it is over and has."""
        return self._error

    def get_future(self) -> Any:
        """Return a future of the result, a list of tensors. Its callbacks may wait for other calls."""
        with self._guard:
            if self._future is None:
                end: Any = torch.futures.Future()
                # An error raised in a callback is one for DDP, too, which is C++; ``set_exception`` is Python's alone.
                self._future = end.then(self._outcome)
                self._end = None if self._is_over else end
                if self._is_over:
                    end.set_result(None)
        return self._future

    def result(self) -> Any:
        """Return the tensors that the call has written, in a list."""
        return self._result

    def _outcome(self, _: Any) -> Any:
        if self._error is not None:
            raise self._error
        return self._result


class CallQueue:
    """Makes calls in the order in which they come: in a thread of its own, or where the caller waits for them anyway.

    All ranks make the same calls in the same order. Only the order in which calls come counts; a call that would wait
    returns at once, so that ranks may wait for the calls of several groups in any order.
    """

    def __init__(self, leave: _Leave, own_cores: Callable[[], set[int]] = set) -> None:
        """Begin with no call.

        ``leave``: ends the group where a wait is interrupted. ``own_cores``: where the thread is to stay, if anywhere.
        """
        self._leave, self._own_cores = leave, own_cores
        # Re-entrant: a signal handler may add a call where one is being added.
        self._guard = threading.RLock()
        self._waiting = collections.deque[Call]()
        #: Whether a thread is making calls; and which one, if it is a caller's.
        self._is_busy = False
        self._caller = 0
        self._wake = threading.Semaphore(0)
        self._is_ended = False
        self._thread: threading.Thread | None = None

    def add(self, body: Callable[[], Any], *, is_waited_for: bool) -> Call:
        """Add a call. If the caller waits for it and no other is waiting, make it here.

        Raises:
            GroupError: a signal handler or a finalizer has interrupted the call of this very thread, and would wait.

        """
        call = Call(body, self._leave)
        with self._guard:
            # Without a thread there is nobody else to make it: of a group that was left it raises an error.
            is_made_here = (is_waited_for or self._is_ended) and not self._is_busy
            if is_waited_for and self._is_busy and self._caller == threading.get_ident():
                raise GroupError.concurrent(_DOING)
            if is_made_here:
                self._caller = threading.get_ident()
            else:
                self._waiting.append(call)
                self._start()
            self._is_busy = True
        if is_made_here:
            try:
                call.make()
            finally:
                self._hand_on()
        return call

    def end(self) -> None:
        """Let calls that wait end, for a moment, before the group is closed."""
        until = time.monotonic() + CLOSE_S
        while self._is_busy and self._caller != threading.get_ident() and time.monotonic() < until:
            time.sleep(1e-3)

    def join(self) -> None:
        """Wait a moment for the end of the thread, once the group is closed: it must not outlive the interpreter."""
        with self._guard:
            thread, self._is_ended = self._thread, True
            self._wake.release()
        if thread is not None and thread is not threading.current_thread():
            thread.join(CLOSE_S)

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="treefold collectives", daemon=True)
            self._thread.start()
        if not self._is_busy:
            self._wake.release()

    def _hand_on(self) -> None:
        """Let the thread make the calls that have come while one was made by its caller."""
        with self._guard:
            self._caller, self._is_busy = 0, bool(self._waiting)
            if self._waiting:
                self._wake.release()

    def _work(self) -> None:
        if cores := self._own_cores():
            with contextlib.suppress(OSError):  # the system has taken them away meanwhile
                os.sched_setaffinity(0, cores)  # of this thread
        while self._wake.acquire() and (not self._is_ended or self._waiting):
            while (call := self._next()) is not None:
                with contextlib.suppress(BaseException):  # ``wait`` raises that
                    call.make()
                del call

    def _next(self) -> Call | None:
        with self._guard:
            if self._waiting:
                return self._waiting.popleft()
            self._is_busy = False
            return None


_callers: dict[int, ThreadPoolExecutor] = {}


def _call_back(end: Any) -> None:
    """Set a future in a thread of its own: callbacks may wait for the next calls."""
    try:
        if os.getpid() not in _callers:  # a forked child has none of its parent's threads
            _callers[os.getpid()] = ThreadPoolExecutor(_MOST_CALLBACKS, "treefold callbacks")
        _callers[os.getpid()].submit(end.set_result, None)
    except RuntimeError:  # no room for another thread, or the interpreter ends
        end.set_result(None)
