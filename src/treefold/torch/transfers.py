"""A message on its way, as PyTorch's work."""

from __future__ import annotations

import os
import threading
from datetime import timedelta
from typing import Any

import torch
from torch import distributed

from treefold.errors import DeadlineError, GroupError
from treefold.torch.flat import Flat


class Carrier(threading.Thread):
    """The thread of a mailbox, in which nobody may wait for a message."""


class Transfer(distributed.Work):  # type: ignore[misc] # mypy does not read torch
    """One tensor on its way to or from a peer. ``peer``: None until it is known who sends.

    The bytes travel in memory of their own: what is sent is copied at once, and what comes is copied into the tensor
    when all of it is here. So the tensor of a transfer that has failed is as it was, and stays so.
    """

    def __init__(self, peer: int | None, tag: int, tensor: Any, *, rank: int, is_sent: bool, until: float) -> None:
        """Begin with a copy of what is sent. ``rank``: this one; ``until``: a moment on the monotonic clock.

        Raises:
            DeviceError: the tensor is not in host memory, or not strided.
            ProcessGroupError: its storage was freed, or it is to be written and some of its elements share memory.

        """
        super().__init__()
        self.peer, self.tag, self.until = peer, tag, until
        self._rank, self._pid = rank, os.getpid()
        self._flat, self._tensor = Flat(), tensor
        memory = self._flat.copy(tensor) if is_sent else self._flat.target(tensor, is_apart=True)
        #: Its bytes.
        self.memory = memoryview(memory.view(torch.uint8).numpy()) if memory.numel() else memoryview(b"")
        # Held while the tensor is written: whoever gives the transfer up comes before that, or too late.
        self._guard = threading.RLock()
        self._is_over = False
        self._done = threading.Event()
        self._error: GroupError | None = None
        self._future: Any = torch.futures.Future()

    def finish(self, error: GroupError | None = None) -> None:
        """End the transfer, whole or with an error, unless it has ended already."""
        with self._guard:
            if self._is_over:
                return
            self._is_over = True
            self._error = error or self._write()
        try:
            if self._error is None:
                self._future.set_result([self._tensor])
            else:
                self._future.set_exception(self._error)
        finally:  # whatever callbacks of the future raise
            self._done.set()

    def _write(self) -> GroupError | None:
        try:
            self._flat.finish()
        except Exception as error:  # noqa: BLE001 - whoever waits for the transfer raises it
            return GroupError.mail_failed(error)
        return None

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the end. A wait that ends otherwise gives the transfer up: its tensor is not written any more.

        Raises:
            GroupError: the peer is gone, late, or has another size; or this is no place to wait.

        """
        if os.getpid() != self._pid:
            raise GroupError.forked(self._rank)
        if isinstance(threading.current_thread(), Carrier) and not self._done.is_set():
            raise GroupError.mail_callback()
        seconds = min(timeout.total_seconds(), threading.TIMEOUT_MAX) if timeout else 0.0
        try:
            if not self._done.wait(seconds if seconds > 0 else None):
                self.finish(DeadlineError.mail(self.peer))
                self._done.wait()  # it may have ended in this moment
        except BaseException:
            self.finish(GroupError.mail_given_up())
            raise
        if self._error is not None:
            raise self._error
        return True

    def is_completed(self) -> bool:
        """Tell whether it has ended."""
        return self._done.is_set()

    def is_success(self) -> bool:
        """Tell whether it has ended well."""
        return self._done.is_set() and self._error is None

    def get_future(self) -> Any:
        """Return a future of the tensor, in a list."""
        return self._future

    def result(self) -> list[Any]:
        """Return the tensor, in a list."""
        return [self._tensor]

    def source_rank(self) -> int:
        """Return who has sent it."""
        return -1 if self.peer is None else self.peer

    _source_rank = source_rank
