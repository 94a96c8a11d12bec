"""The ranks that come to rank 0: they show their token, and get what the group needs."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from pathlib import Path
from typing import Any

from treefold.errors import ConnectError, SharedMemoryError
from treefold.group.descriptor_passing import (
    HELLO,
    MAGIC,
    NO_ROOM,
    VERSION,
    Lifeline,
    Met,
    check,
    close_all,
    has_come,
    met,
    namespace,
    peer,
    receive,
    refusal,
    send,
    send_some,
)
from treefold.group.ticket import Ticket, Waiting

_RETRY_S, _GRACE_S = 0.02, 1.0


class Client:
    """The side of all other ranks."""

    def __init__(self, ticket: Ticket, agreed: dict[str, object], waiting: Waiting) -> None:
        """Show the token at rank 0's door."""
        self._rank, self._waiting = ticket.rank, waiting
        self._number, self._first = waiting.numbers[ticket.rank], waiting.numbers[0]
        self._until = waiting.deadline + _GRACE_S
        self._connection = _knock(ticket, waiting)
        problem, descriptors = "", []
        try:
            self.lifeline = Lifeline()
            descriptors = [self.lifeline.other_end]
        except OSError as error:
            problem = str(SharedMemoryError.of_system(error))
        terms = {"agreed": agreed, "namespace": namespace(), "problem": problem}
        text = json.dumps(terms).encode()
        hello = HELLO.pack(MAGIC, VERSION, ticket.rank, ticket.size, len(text), ticket.token.encode())
        try:
            send_some(self._connection, hello + text, descriptors)
        except OSError:
            self.close()
            raise ConnectError.turned_away(self._first) from None
        finally:
            close_all(descriptors)

    def join(self) -> Met:
        """Wait for the shared memory.

        Raises:
            ConnectError: the first rank has turned this rank away, or has ended.
            SharedMemoryError: a process has no room for descriptors.

        """
        reply, descriptors = self._next()
        return met(self._rank, descriptors[0], reply["members"], descriptors[1:])

    def settle(self) -> None:
        """Say that this rank has mapped the memory, and wait for the others.

        Raises:
            ConnectError: somebody has not.

        """
        self._say({})
        self._next()

    def give_up(self, error: BaseException) -> None:
        """Tell the first rank, and so all others, why this rank does not go on."""
        self._say(refusal(self._number, error))

    def _say(self, message: dict[str, object]) -> None:
        with contextlib.suppress(OSError):
            send(self._connection, message)

    def _next(self) -> tuple[dict[str, Any], list[int]]:
        if not has_come(self._connection, self._until, self._waiting.raise_if_over):
            raise ConnectError.out_of_time(self._number, self._waiting.seconds)
        try:
            reply, descriptors = receive(self._connection)
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno in NO_ROOM:
                raise SharedMemoryError.of_system(error) from None
            raise ConnectError.turned_away(self._first) from None
        check(reply)
        return reply, descriptors

    def close(self) -> None:
        """End the connection."""
        self._connection.close()


def is_listening(ticket: Ticket) -> bool:
    """Tell whether somebody listens where the ticket says."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as connection:
        return connection.connect_ex(ticket.address) == 0


def _knock(ticket: Ticket, waiting: Waiting) -> socket.socket:
    """Connect to rank 0, which may not listen yet."""
    first = waiting.numbers[0]
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        # With a limit: where too many wait at the door, the system would let this rank wait for ever. Rank 0 waits a
        # little less, and says who is missing.
        connection.settimeout(max(waiting.deadline - time.monotonic(), 0) + _GRACE_S)
        try:
            connection.connect(ticket.address)
        except ConnectionRefusedError:
            connection.close()
            raise ConnectError.turned_away(first) from None
        except OSError:
            connection.close()
            if not waiting.is_kept and not Path(ticket.folder).is_dir():
                raise ConnectError.folder(
                    ticket.folder, "is gone: this ticket was good for an attempt that has ended"
                ) from None
            if time.monotonic() >= waiting.deadline:
                raise ConnectError.late([first], waiting.seconds) from None
            waiting.raise_if_over()
            time.sleep(_RETRY_S)
            continue
        if peer(connection)[1] != os.getuid():
            connection.close()
            raise ConnectError.folder(ticket.folder, "has a socket of another user")
        return connection
