"""A message on its way, as PyTorch's work."""

from __future__ import annotations

import atexit
import itertools
import math
import os
import threading
import time
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeAlias

import torch
from torch import distributed

from treefold.backends.torch_untraced import untraced
from treefold.errors import DeadlineError, GroupError
from treefold.torch.flat import Flat

_LOOK_S = 1.0
_numbers = itertools.count(1)
_calling_back: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
_Told: TypeAlias = Callable[["Transfer"], None]


@untraced
class Transfer(distributed.Work):  # type: ignore[misc] # mypy does not read torch
    """One tensor on its way to or from a peer. ``peer``: None until it is known who sends.

    The bytes travel in memory of their own: what is sent is copied at once, and what comes is copied into the tensor
    when all of it is here. So the tensor of a transfer that has failed is as it was, and stays so.
    """

    def __init__(
        self, peer: int | None, tag: int, tensor: Any, *, rank: int, is_sent: bool, until: float, given_up: _Told
    ) -> None:
        """Begin with a copy of what is sent.

        ``rank``: this one; ``until``: a moment on the monotonic clock; ``given_up``: called if a wait ends it early.

        Raises:
            DeviceError: the tensor is not in host memory, or not strided.
            ProcessGroupError: its storage was freed, or it is to be written and some of its elements share memory.

        """
        super().__init__()
        self.peer, self.tag, self.until, self.is_sent = peer, tag, until, is_sent
        #: From whom it was asked for, None for any rank, and its tag.
        self.wanted = peer, tag
        #: Its place among this process's transfers.
        self.number = next(_numbers)
        self._rank, self._pid, self._given_up = rank, os.getpid(), given_up
        self._flat, self._tensor = Flat(), tensor
        memory = self._flat.copy(tensor) if is_sent else self._flat.target(tensor, is_apart=True)
        #: Its bytes.
        self.memory = memoryview(memory.view(torch.uint8).numpy()) if memory.numel() else memoryview(bytearray())
        # Held while the tensor is written: whoever gives the transfer up comes before that, or too late.
        self._guard = threading.RLock()
        self._is_over = False
        # Let go when it is over. A bare lock, because an interrupt within an Event may leave that locked for ever.
        self._running = threading.Lock()
        self._running.acquire()
        self._error: GroupError | None = None
        self._future: Any = None

    def finish(self, error: GroupError | None = None) -> bool:
        """End the transfer, whole or with an error, unless it has ended already; tell whether it had not."""
        with self._guard:
            if self._is_over:
                return False
            ended = error or self._write()
            # Both before any other function is called, where an interrupt could come between them.
            self._error, self._is_over = ended, True
            self._running.release()
            future = self._future
        if future is not None:
            try:
                # Callbacks may wait for other messages, which this thread is to bring.
                thread = threading.Thread(target=self._settle, name="treefold callbacks", daemon=True)
                thread.start()
                _calling_back.add(thread)
            except RuntimeError:  # no room for another thread
                self._settle()
        return True

    def _settle(self) -> None:
        if self._error is None:
            self._future.set_result([self._tensor])
        else:
            self._future.set_exception(self._error)

    def _write(self) -> GroupError | None:
        try:
            self._flat.finish()
        except Exception as error:  # noqa: BLE001 - whoever waits for the transfer raises it
            return GroupError.mail_failed(error)
        return None

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the end. A wait that ends otherwise gives the transfer up: its tensor is not written any more.

        Raises:
            GroupError: the peer is gone, late, or has another size; or this is a forked child.

        """
        try:
            self._check_process()
            seconds = timeout.total_seconds() if timeout else 0.0
            own = time.monotonic() + seconds if seconds > 0 else math.inf
            # The mailbox ends it at its deadline and says more, unless its thread is held up.
            if not self._ends_by(min(own, self.until + _LOOK_S)):
                self._give_up(DeadlineError.mail(self.peer))
        except Exception:
            raise
        except BaseException:
            self._give_up(GroupError.mail_given_up())
            raise
        if self._error is not None:
            raise self._error
        return True

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise GroupError.forked(self._rank)

    def _give_up(self, error: GroupError) -> None:
        self.finish(error)  # unless it has ended in this moment
        self._given_up(self)

    def _ends_by(self, deadline: float) -> bool:
        while not self._is_over:
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            # Not longer: another thread that waits may have been interrupted when it had the lock.
            if self._running.acquire(timeout=min(left, _LOOK_S)):
                self._running.release()
        return True

    def is_completed(self) -> bool:
        """Tell whether it has ended."""
        return self._is_over

    def is_success(self) -> bool:
        """Tell whether it has ended well."""
        return self._is_over and self._error is None

    def get_future(self) -> Any:
        """Return a future of the tensor, in a list. Its callbacks run in a thread of their own."""
        with self._guard:
            if self._future is None:
                self._future = torch.futures.Future()
                if self._is_over:
                    self._settle()
            return self._future

    def result(self) -> list[Any]:
        """Return the tensor, in a list."""
        return [self._tensor]

    def source_rank(self) -> int:
        """Return who has sent it."""
        return -1 if self.peer is None else self.peer

    _source_rank = source_rank


@atexit.register  # before any group is made, so after all of them have been left
def _await_callbacks() -> None:
    # A thread that came back from PyTorch's C++ into an interpreter that has ended would abort the process.
    for thread in list(_calling_back):
        thread.join()
