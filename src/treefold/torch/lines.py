"""One end of a connection that neither blocks to read nor to write, and a transfer as PyTorch's work."""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch import distributed

from treefold.errors import DeadlineError, GroupError
from treefold.torch.flat import Flat

_MOST_AT_ONCE = 1 << 20


class Transfer(distributed.Work):  # type: ignore[misc] # mypy does not read torch
    """One tensor on its way to or from a peer. ``peer``: None until it is known who sends."""

    def __init__(self, peer: int | None, tag: int, tensor: Any, *, is_sent: bool, until: float) -> None:
        """Hold the tensor's memory. ``until``: a moment on the monotonic clock.

        Raises:
            DeviceError: the tensor is not in host memory, or not strided.

        """
        super().__init__()
        self.peer, self.tag, self.until = peer, tag, until
        self._flat, self._tensor = Flat(), tensor
        memory = self._flat.source(tensor) if is_sent else self._flat.target(tensor)
        #: Its bytes; the tensor itself is kept as long.
        self.memory = memoryview(memory.view(torch.uint8).numpy()) if memory.numel() else memoryview(b"")
        self._done = threading.Event()
        self._error: GroupError | None = None
        self._future: Any = torch.futures.Future()

    def finish(self, error: GroupError | None = None) -> None:
        """End the transfer: it is whole, or has failed."""
        self._error = error
        if error is None:
            self._flat.finish()
            self._future.set_result([self._tensor])
        else:
            self._future.set_exception(error)
        self._done.set()

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the end.

        Raises:
            GroupError: the peer is gone, late, or has another size.

        """
        seconds = timeout.total_seconds() if timeout else 0.0
        if not self._done.wait(seconds if seconds > 0 else None):
            raise DeadlineError.mail(self.peer)
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


class Line:
    """A connection: what is to be written goes out in order, what is expected is read into its place."""

    def __init__(self, connection: socket.socket, memory: memoryview, then: Callable[[Line], None]) -> None:
        """Expect as many bytes as ``memory`` has; then ``then`` is called, which expects the next ones."""
        connection.setblocking(False)  # noqa: FBT003 - the socket module's signature
        self.connection = connection
        #: The rank at the other end, once it is known.
        self.peer: int | None = None
        self._writes: deque[tuple[memoryview, Callable[[], None] | None]] = deque()
        self.expect(memory, then)

    def expect(self, memory: memoryview, then: Callable[[Line], None]) -> None:
        """Set what comes next; at least one byte."""
        self._memory, self._filled, self._then = memory, 0, then

    def post(self, data: bytes | memoryview, done: Callable[[], None] | None = None) -> None:
        """Write behind what is being written; ``done`` is called when the last byte is out."""
        self._writes.append((memoryview(data), done))

    @property
    def has_writes(self) -> bool:
        """Whether something waits to be written."""
        return bool(self._writes)

    def read(self) -> None:
        """Read what has come.

        Raises:
            OSError: the other end is gone.

        """
        try:
            count = self.connection.recv_into(self._memory[self._filled :][:_MOST_AT_ONCE])
        except BlockingIOError:
            return
        if not count:
            raise ConnectionResetError
        self._filled += count
        if self._filled == len(self._memory):
            self._then(self)

    def write(self) -> None:
        """Write what there is room for.

        Raises:
            OSError: the other end is gone.

        """
        while self._writes:
            data, done = self._writes[0]
            try:
                count = self.connection.send(data[:_MOST_AT_ONCE]) if data else 0
            except BlockingIOError:
                return
            if count < len(data):
                self._writes[0] = data[count:], done
                continue
            self._writes.popleft()
            if done is not None:
                done()
