"""One end of a connection that neither blocks to read nor to write."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable

_MOST_AT_ONCE = 1 << 20


class Line:
    """A connection: what is to be written goes out in order, what is expected is read into its place."""

    def __init__(self, connection: socket.socket) -> None:
        """Begin without anything to write; call ``expect`` before anything is read."""
        connection.setblocking(False)  # noqa: FBT003 - the socket module's signature
        self.connection = connection
        #: The rank at the other end, once it is known.
        self.peer: int | None = None
        self._writes: deque[tuple[memoryview, Callable[[], None] | None]] = deque()

    @property
    def rank(self) -> int:
        """The rank at the other end, where it is known."""
        assert self.peer is not None  # noqa: S101 - whoever has not shown the token is asked for nothing else
        return self.peer

    def expect(self, memory: memoryview, then: Callable[[Line], None]) -> None:
        """Read the next bytes into ``memory``, at least one; then call ``then``, which expects those behind them."""
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
        """Write what there is room for. If the other end is gone, ``read`` says so, behind all that it has sent.

        Raises:
            OSError: the system refuses.

        """
        while self._writes:
            data, done = self._writes[0]
            try:
                count = self.connection.send(data[:_MOST_AT_ONCE]) if data else 0
            except BlockingIOError:
                return
            except (BrokenPipeError, ConnectionResetError):
                self._writes.clear()
                return
            if count < len(data):
                self._writes[0] = data[count:], done
                continue
            self._writes.popleft()
            if done is not None:
                done()
