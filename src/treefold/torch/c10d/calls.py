"""The collectives of one process group, one at a time and in order, as PyTorch's work."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable
from concurrent import futures
from datetime import timedelta
from typing import Any

import torch
from torch import distributed

from treefold.backends.torch_untraced import untraced
from treefold.engines.times import CLOSE_S
from treefold.errors import DeadlineError, GroupError

_DOING = "a collective"
_Leave = Callable[[BaseException], None]


@untraced
class Call(distributed.Work):  # type: ignore[misc] # mypy does not read torch
    """A call that waits, is under way, or is over."""

    def __init__(self, leave: _Leave) -> None:
        """Begin with a call that was not made. ``leave``: ends the group where a wait is interrupted."""
        super().__init__()
        self._leave, self._pid = leave, os.getpid()
        self._end, self._guard = futures.Future[Any](), threading.Lock()
        self._future: Any = None

    def make(self, body: Callable[[], Any]) -> None:
        """Make the call.

        Raises:
            TreefoldError: one of its kinds, which ``wait`` raises, too.

        """
        try:
            result = body()
        except BaseException as error:
            self._end.set_exception(error)
            raise
        self._end.set_result(result)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until the call is over. Whatever a signal handler raises meanwhile ends the group.

        Raises:
            GroupError: the call has failed, or this process is a forked child.
            DeadlineError: it is not over in this time, and goes on.

        """
        if not self._end.done():
            if os.getpid() != self._pid:
                raise GroupError.forked_in_call()
            seconds = timeout.total_seconds() if timeout else 0.0  # gloo's "no timeout" is 0
            try:
                futures.wait([self._end], seconds if seconds > 0 else None)
            except BaseException as error:  # this rank does not see the end of the call that the others make
                self._leave(error)
                raise
            if not self._end.done():
                raise DeadlineError.of_wait(seconds)
        self._end.result()
        return True

    def is_completed(self) -> bool:
        """Tell whether the call is over."""
        return self._end.done()

    def is_success(self) -> bool:
        """Tell whether the call has ended well."""
        return self._end.done() and self._end.exception() is None

    def exception(self) -> BaseException | None:
        """Return what the call has raised, if it is over and has."""
        return self._end.exception() if self._end.done() else None

    def get_future(self) -> Any:
        """Return a future of the result, a list of tensors. Its callbacks may wait for other calls."""
        with self._guard:
            if self._future is None:
                end: Any = torch.futures.Future()
                # An error raised in a callback is one for DDP, too, which is C++; ``set_exception`` is Python's alone.
                self._future = end.then(lambda _: self._end.result())
                if self._end.done():
                    end.set_result(None)
                else:
                    self._end.add_done_callback(lambda _: _call_back(end))
        return self._future

    def result(self) -> Any:
        """Return the tensors that the call has written, in a list."""
        return self._end.result()


def _call_back(end: Any) -> None:
    """Set a future in a thread of its own: callbacks may wait for the next calls."""
    threading.Thread(target=end.set_result, args=(None,), name="treefold callbacks", daemon=True).start()


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
        self._waiting = queue.SimpleQueue[tuple[Call, Callable[[], Any]] | None]()
        #: How many calls are not over, and the thread that makes one.
        self._count, self._maker = 0, 0
        self._making = threading.Lock()
        self._is_ended = False
        self._thread: threading.Thread | None = None

    def add(self, body: Callable[[], Any], *, is_waited_for: bool) -> Call:
        """Add a call. If the caller waits for it and no other is waiting, make it here.

        Raises:
            GroupError: a signal handler or a finalizer has interrupted the call of this very thread, and would wait.

        """
        call = Call(self._leave)
        with self._guard:
            # Once the thread has ended there is nobody else to make it: of a group that was left it raises an error.
            if (is_waited_for or self._is_ended) and self._maker == threading.get_ident():
                raise GroupError.concurrent(_DOING)
            is_made_here = self._is_ended or (is_waited_for and not self._count)
            self._count += 1
            if not is_made_here:
                self._start()
                self._waiting.put((call, body))
        if is_made_here:
            self._make(call, body)
        return call

    def end(self) -> None:
        """Let calls that wait end, for a moment, before the group is closed."""
        until = time.monotonic() + CLOSE_S
        while self._count and self._maker != threading.get_ident() and time.monotonic() < until:
            time.sleep(1e-3)

    def join(self) -> None:
        """Wait a moment for the end of the thread, once the group is closed: it must not outlive the interpreter."""
        with self._guard:
            self._is_ended = True
            self._waiting.put(None)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(CLOSE_S)

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="treefold collectives", daemon=True)
            self._thread.start()

    def _make(self, call: Call, body: Callable[[], Any]) -> None:
        with self._making:
            try:
                self._maker = threading.get_ident()
                call.make(body)
            finally:
                with self._guard:
                    self._maker, self._count = 0, self._count - 1

    def _work(self) -> None:
        if cores := self._own_cores():
            with contextlib.suppress(OSError):  # the system has taken them away meanwhile
                os.sched_setaffinity(0, cores)  # of this thread
        while (brought := self._waiting.get()) is not None:
            with contextlib.suppress(BaseException):  # ``wait`` raises that
                self._make(*brought)
            del brought
