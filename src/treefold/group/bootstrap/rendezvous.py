"""The rendezvous of the ranks of one host: rank 0 listens at a Unix socket and lets in ranks that show their tickets.

Every rank hands in a lifeline, by which the others see it end, and gets those of all others and the shared memory.
Descriptors are sent, never fetched, so that no right over other processes is needed. That they arrive proves that the
ranks share a host. Rank 0 removes the folder and the socket before it tells any rank that the group has formed, or has
not. So a rank that connects again with the same ticket cannot reach the socket of the last attempt.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import secrets
import selectors
import socket
import stat
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from treefold.engines.times import CLOSE_S, GRACE_PERIOD_S, RETRY_S
from treefold.errors import ConnectError, SharedMemoryError
from treefold.group.transport.descriptor_passing import close_all, new_socket, peer, receive, send

MOST_RANKS = 255
_SOCKET = "s"
#: A socket's path has 107 bytes at most.
_LONGEST_PARENT = 107 - len("/treefold-12345678/s~")
_NONE = -1


@dataclass(frozen=True, slots=True)
class Ticket:
    """A ticket, which lets one rank into a group on one host.

    Ranks that connect again show the same tickets, and so do new processes that replace lost ones.

    Args:
        folder: The folder of rank 0's socket. Only this user can read it, and it is gone once the group has formed.
        token: A secret of 256 bits, in hexadecimal.
        rank: The number of the rank, from 0.
        size: The number of ranks.

    """

    folder: str
    token: str
    rank: int
    size: int

    @classmethod
    def for_ranks(cls, size: int) -> list[str]:
        """Return one ticket as text for each of ``size`` ranks, for ``multiprocessing`` children for instance.

        Raises:
            ConnectError: ``size`` is not a whole number from 1 to 255.

        >>> tickets = Ticket.for_ranks(2)
        >>> [Ticket.read(text).rank for text in tickets]
        [0, 1]
        """
        if type(size) is not int or not 1 <= size <= MOST_RANKS:
            raise ConnectError(f"A host has 1 to {MOST_RANKS} ranks, and {size!r} were asked for.")
        folder = tempfile.mkdtemp(prefix="treefold-", dir=_parent())
        token = secrets.token_hex(32)
        return [str(cls(folder, token, rank, size)) for rank in range(size)]

    @classmethod
    def read(cls, text: str) -> Ticket:
        """Return the ticket that ``str`` has made into this text.

        Raises:
            ConnectError: the text is not a ticket's.

        """
        try:
            folder, token, rank, size = json.loads(text)
        except (TypeError, ValueError, RecursionError):
            raise ConnectError.ticket(str(text)) from None
        is_right = isinstance(folder, str) and isinstance(token, str) and type(rank) is int and type(size) is int
        if not is_right or not 0 <= rank < size <= MOST_RANKS:
            raise ConnectError.ticket(text)
        return cls(folder, token, rank, size)

    @property
    def address(self) -> str:
        """The path of the socket at which rank 0 listens."""
        return str(Path(self.folder, _SOCKET))

    def discard(self) -> None:
        """Remove the folder if it exists. This opens no descriptor, because there may be none left."""
        for path in (f"{self.address}~", self.address):
            with contextlib.suppress(OSError):
                Path(path).unlink()
        with contextlib.suppress(OSError):
            Path(self.folder).rmdir()

    def __str__(self) -> str:
        """Return the text that ``read`` reads."""
        return json.dumps([self.folder, self.token, self.rank, self.size])


def _parent() -> str:
    """Return the folder for temporary files, or a shorter one where no socket could have its name."""
    parent = tempfile.gettempdir()
    return parent if len(os.fsencode(parent)) <= _LONGEST_PARENT else "/tmp"  # noqa: S108 - for mkdtemp


@dataclass(frozen=True, slots=True)
class HostAttempt:
    """One attempt of a rank to meet the others of its host.

    Attributes:
        deadline: The end of the attempt on the monotonic clock, in seconds.
        seconds: The time that the user gave ``connect``, for errors.
        numbers: The number of each rank in its group. Over several hosts it is not that of the ticket.
        is_kept: Whether ranks keep the ticket to connect again. Then rank 0 makes the folder again, and the others wait
            for it.

    """

    deadline: float
    seconds: float
    numbers: Sequence[int] = range(MOST_RANKS)
    is_kept: bool = False


class Met(NamedTuple):
    """The result of a rendezvous for one rank.

    Attributes:
        fd: The descriptor of the shared memory.
        lifelines: The descriptor of each rank's lifeline; -1 for this rank.
        pids: The process number of each rank; 0 if this process cannot see that one.

    """

    fd: int
    lifelines: list[int]
    pids: list[int]


class Listener:
    """Rank 0's side: it listens, lets the others in, and sends them what they need."""

    def __init__(self, ticket: Ticket, agreed: Mapping[str, object], attempt: HostAttempt) -> None:
        """Prepare for ``meet``; ``agreed`` must be the same on all ranks."""
        self._ticket, self._agreed, self._attempt = ticket, agreed, attempt
        #: Of each rank that is in: its connection, the number of its process, and its lifeline, until that is shared.
        self._members: dict[int, tuple[socket.socket, int, list[int]]] = {}
        self._open = contextlib.ExitStack()
        # Registered before the socket exists: whatever fails in between, the folder is taken away.
        self._open.callback(ticket.discard)

    def meet(self, lifeline: int, new_memory: Callable[[], int]) -> Met:
        """Wait until all ranks have come, and share new memory with them. ``lifeline``: the end that is for them.

        Raises:
            ConnectError: some did not come in time, or one does not fit or has gone again.
            OSError: a process has no room for descriptors, or there is no memory.

        """
        self._listen()
        while missing := [rank for rank in range(1, self._ticket.size) if rank not in self._members]:
            left = self._attempt.deadline - time.monotonic()
            if left <= 0:
                raise ConnectError.late([self._attempt.numbers[rank] for rank in missing], self._attempt.seconds)
            for key, _ in self._selector.select(left):
                if key.fileobj is self._listener:
                    self._accept()
                elif key.data is None:
                    self._admit(key.fileobj)  # type: ignore[arg-type] # all of them are sockets
                else:  # a rank that is in says nothing yet, but why it gives up
                    self._hear(key.data, 0.0)
        members = [self._members[rank] for rank in range(1, self._ticket.size)]
        fd, pids = new_memory(), [os.getpid(), *(pid for _, pid, _ in members)]
        # Taken out of the members: from here on the result owns them, and ``close`` must not close them again.
        lifelines = [descriptors.pop() for *_, descriptors in members]
        for connection, *_ in members:
            with contextlib.suppress(OSError):  # it has gone, as will show
                send(connection, {"members": pids}, [fd, lifeline, *lifelines])
        return Met(fd, [_NONE, *lifelines], pids)

    def _listen(self) -> None:
        _check_folder(self._ticket.folder, is_kept=self._attempt.is_kept)
        self._selector = self._open.enter_context(selectors.DefaultSelector())
        self._open.callback(self._drop_strangers)
        self._listener = self._open.enter_context(new_socket())
        try:
            Path(f"{self._ticket.address}~").unlink(missing_ok=True)  # of a process that was killed here
            self._listener.bind(f"{self._ticket.address}~")
            self._listener.listen(self._ticket.size)
            # A rank that a socket of the right name refuses knows that its listener has ended.
            Path(f"{self._ticket.address}~").rename(self._ticket.address)
        except OSError as error:
            why = f"refuses a socket ({error.strerror or error})"
            raise ConnectError.folder(self._ticket.folder, why) from None
        # Never blocks: a connection that is gone again between ``select`` and ``accept`` would hold up all others.
        self._listener.settimeout(0)
        self._selector.register(self._listener, selectors.EVENT_READ)

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionAbortedError):  # it has gone again
            connection, _ = self._listener.accept()
            if peer(connection)[1] != os.getuid():
                connection.close()
                return
            connection.settimeout(0)
            self._selector.register(connection, selectors.EVENT_READ)

    def _admit(self, connection: socket.socket) -> None:
        """Let a rank in that shows the token. Others are turned away without a word, and those waited for may come."""
        self._selector.unregister(connection)
        try:
            said, descriptors = receive(connection)
            rank, (pid, _) = said["rank"], peer(connection)
            is_right = hmac.compare_digest(said["token"], self._ticket.token)
        except (OSError, ValueError, KeyError, TypeError):
            connection.close()
            return
        if not is_right or said["size"] != self._ticket.size or not 0 < rank < said["size"] or rank in self._members:
            connection.close()
            close_all(descriptors)
            return
        connection.settimeout(self._attempt.seconds)
        self._members[rank] = connection, pid, descriptors
        self._selector.register(connection, selectors.EVENT_READ, rank)
        for name, own in self._agreed.items():
            if said["agreed"].get(name) != own:
                number, first = self._attempt.numbers[rank], self._attempt.numbers[0]
                raise ConnectError.differs(name, number, said["agreed"].get(name), own, first)

    def _drop_strangers(self) -> None:
        for key in self._selector.get_map().values():
            if key.data is None:
                key.fileobj.close()  # type: ignore[union-attr] # as above

    def settle(self) -> None:
        """Wait until all ranks have mapped the memory, and tell them so.

        Raises:
            ConnectError: one of them could not, or is gone.

        """
        # One verdict for all, told when all have answered: a group forms on every rank or on none.
        for rank in range(1, self._ticket.size):
            self._hear(rank, self._attempt.deadline + CLOSE_S - time.monotonic())
        self._tell({})

    def give_up(self, error: BaseException) -> None:
        """Tell the ranks that are in why the group does not form."""
        self._tell(_refusal(self._attempt.numbers[0], error))

    def _hear(self, rank: int, seconds: float) -> None:
        """Raise what a rank says, or that it says nothing within this time."""
        connection, number = self._members[rank][0], self._attempt.numbers[rank]
        connection.settimeout(max(seconds, RETRY_S))
        try:
            said, _ = receive(connection)
        except TimeoutError:
            raise ConnectError.late([number], self._attempt.seconds) from None
        except (OSError, ValueError):
            raise ConnectError.gone(number) from None
        _raise_refusal(said)

    def _tell(self, message: Mapping[str, object]) -> None:
        self._open.close()  # first: a rank that hears this may connect again at once
        for connection, *_ in self._members.values():
            connection.settimeout(CLOSE_S)
            with contextlib.suppress(OSError):
                send(connection, message)

    def close(self) -> None:
        """End all connections, and take the folder away."""
        self._open.close()
        for connection, _, descriptors in self._members.values():
            connection.close()
            close_all(descriptors)


class Client:
    """The side of all other ranks."""

    def __init__(self, ticket: Ticket, agreed: Mapping[str, object], attempt: HostAttempt) -> None:
        """Connect to rank 0."""
        self._ticket, self._agreed, self._attempt = ticket, agreed, attempt
        self._number, self._first = attempt.numbers[ticket.rank], attempt.numbers[0]
        self._connection = _knock(ticket, attempt)

    def meet(self, lifeline: int, _: Callable[[], int]) -> Met:
        """Show the token, hand in the end of the lifeline for the others, and wait for the first rank's memory.

        Raises:
            ConnectError: the first rank has turned this rank away, or has ended.
            OSError: this process has no room for descriptors.

        """
        own = self._ticket
        hello = {"token": own.token, "rank": own.rank, "size": own.size, "agreed": self._agreed}
        try:
            send(self._connection, hello, [lifeline])
        except OSError:
            raise ConnectError.gone(self._first) from None
        reply, (fd, *lifelines) = self._next()
        os.close(lifelines[own.rank])
        lifelines[own.rank] = _NONE
        return Met(fd, lifelines, reply["members"])

    def settle(self) -> None:
        """Say that this rank has mapped the memory, and wait for the others.

        Raises:
            ConnectError: one of them has not.

        """
        self._say({})
        self._next()

    def give_up(self, error: BaseException) -> None:
        """Tell the first rank, and so all others, why this rank does not go on."""
        self._say(_refusal(self._number, error))

    def _say(self, message: Mapping[str, object]) -> None:
        with contextlib.suppress(OSError):
            send(self._connection, message)

    def _next(self) -> tuple[dict[str, Any], list[int]]:
        # Rank 0 waits a little less, and says which are missing.
        self._connection.settimeout(max(self._attempt.deadline + GRACE_PERIOD_S - time.monotonic(), RETRY_S))
        try:
            reply, descriptors = receive(self._connection)
        except TimeoutError:
            raise ConnectError.out_of_time(self._number, self._attempt.seconds) from None
        except ConnectionError:
            raise ConnectError.gone(self._first) from None
        _raise_refusal(reply)
        return reply, descriptors

    def close(self) -> None:
        """End the connection."""
        self._connection.close()


def _knock(ticket: Ticket, attempt: HostAttempt) -> socket.socket:
    """Connect to rank 0, which may not listen yet."""
    first = attempt.numbers[0]
    while True:
        connection = new_socket()
        connection.settimeout(max(attempt.deadline - time.monotonic(), 0) + GRACE_PERIOD_S)
        try:
            connection.connect(ticket.address)
            if peer(connection)[1] == os.getuid():
                return connection
            raise ConnectError.folder(ticket.folder, "has a socket of another user")
        except ConnectError:
            connection.close()
            raise
        except OSError as error:
            connection.close()
            if isinstance(error, ConnectionRefusedError) and not attempt.is_kept:  # nobody takes the dead rank's place
                raise ConnectError.gone(first) from None
            if not attempt.is_kept and not Path(ticket.folder).is_dir():
                why = "is gone: this ticket was good for an attempt that has ended"
                raise ConnectError.folder(ticket.folder, why) from None
            if time.monotonic() >= attempt.deadline:
                raise ConnectError.late([first], attempt.seconds) from None
            time.sleep(RETRY_S)


def _refusal(rank: int, error: BaseException) -> dict[str, object]:
    """Return the message that tells the other ranks of a host why a rank gives up."""
    return {"refusal": ConnectError.reason(rank, error), "is_memory": isinstance(error, SharedMemoryError)}


def _raise_refusal(reply: Mapping[str, Any]) -> None:
    """Raise the error that a message announces, if a rank has given up."""
    if reply.get("refusal"):
        error = ConnectError.announced(*reply["refusal"])
        raise SharedMemoryError(str(error)).blaming(*error.ranks) if reply["is_memory"] else error


def _check_folder(folder: str, *, is_kept: bool) -> None:
    """Refuse a folder that other users can read; if ``is_kept``, make it first where the last group removed it."""
    try:
        if is_kept:
            Path(folder).mkdir(mode=0o700, exist_ok=True)
        found = os.lstat(folder)
    except OSError as error:
        raise ConnectError.folder(folder, f"cannot be made or read ({error.strerror})") from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise ConnectError.folder(folder, "is not this user's alone")
