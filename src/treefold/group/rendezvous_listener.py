"""How the ranks of one host find each other: at a Unix socket where rank 0 lets in who shows the token.

Every rank hands in a lifeline, by which the others see it end, and gets those of all others and the shared memory.
Descriptors are sent, never fetched, so that no right over other processes is needed; and that they arrive proves that
the ranks share a host. The folder and the socket are gone before any rank hears that the group has formed, or that it
does not: so a rank that connects again, with the same ticket, cannot come to the door of the last attempt.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import json
import os
import selectors
import socket
import stat
import time
from dataclasses import dataclass, field
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
    receive_some,
    refusal,
    send,
)
from treefold.group.ticket import Ticket, Waiting

_MOST_TERMS = 4096
#: Whoever does not say who he is in this time is turned away; and the first of them, where more than so many wait.
_PATIENCE_S, _MOST_STRANGERS = 5.0, 64
_LEAST_S = 0.001
#: How long the last that came may take beyond the deadline to map the memory.
_SETTLE_S = 0.5


@dataclass
class Member:
    """A rank as rank 0 knows it."""

    rank: int
    pid: int
    namespace: str
    descriptors: list[int]
    connection: socket.socket | None = None


@dataclass(eq=False)
class _Arrival:
    """A connection that has not shown a token yet."""

    connection: socket.socket
    until: float
    received: bytearray = field(default_factory=bytearray)
    descriptors: list[int] = field(default_factory=list)


class Listener:
    """Rank 0's side: it listens, lets the others in, and sends them what they need."""

    def __init__(self, ticket: Ticket, agreed: dict[str, object], waiting: Waiting) -> None:
        """Be ready for ``gather``. ``agreed``: what must be the same on all ranks."""
        self._ticket, self._agreed, self._waiting, self._numbers = ticket, agreed, waiting, waiting.numbers
        self._members: dict[int, Member] = {}
        self._arrivals: list[_Arrival] = []
        self._open = contextlib.ExitStack()
        # Registered before the socket exists: whatever fails in between, the folder is taken away.
        self._open.callback(ticket.discard)

    def gather(self) -> None:
        """Wait until all ranks have come.

        Raises:
            ConnectError: some did not come in time, or one does not fit or has gone again.
            SharedMemoryError: a process has no room for descriptors.

        """
        self._listen()
        while len(self._members) < self._ticket.size:
            self._look()

    def _listen(self) -> None:
        if self._waiting.is_kept:
            _make_folder(self._ticket.folder)
        _check_folder(self._ticket.folder)
        self._selector = self._open.enter_context(selectors.DefaultSelector())
        self.lifeline = Lifeline()
        self._members[0] = Member(0, os.getpid(), namespace(), [self.lifeline.other_end])
        self._listener = self._open.enter_context(
            socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        )
        try:
            self._listener.bind(f"{self._ticket.address}~")
            self._listener.listen(self._ticket.size + _MOST_STRANGERS)
            # Whoever is refused by a socket of the right name knows that nobody listens any more.
            Path(f"{self._ticket.address}~").rename(self._ticket.address)
        except OSError as error:
            why = f"refuses a socket ({error.strerror or error})"
            raise ConnectError.folder(self._ticket.folder, why) from None
        # Never blocks: a connection that is gone again between ``select`` and ``accept`` would hold up all others.
        self._listener.settimeout(0)
        self._selector.register(self._listener, selectors.EVENT_READ)

    def _look(self) -> None:
        self._waiting.raise_if_over()
        now = time.monotonic()
        if now >= self._waiting.deadline:
            missing = sorted(set(range(self._ticket.size)) - set(self._members))
            raise ConnectError.late([self._numbers[rank] for rank in missing], self._waiting.seconds)
        for key, _ in self._selector.select(min(self._waiting.deadline - now, 0.1)):
            if key.data is None:
                self._accept()
            elif isinstance(key.data, Member):  # nobody who is in says anything yet, but why it gives up
                check(self._reply(key.data, self._waiting.deadline))
            elif key.data in self._arrivals:  # or it was turned away in this round
                self._hear(key.data)
        for arrival in [one for one in self._arrivals if one.until < time.monotonic()]:
            self._drop(arrival)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError as error:
            if error.errno in NO_ROOM and not self._arrivals:
                raise SharedMemoryError.of_system(error) from None
            if error.errno in NO_ROOM:
                self._drop(self._arrivals[0])
            return  # whoever it was comes again, or has gone
        if peer(connection)[1] != os.getuid():
            connection.close()
            return
        if len(self._arrivals) == _MOST_STRANGERS:
            self._drop(self._arrivals[0])
        connection.settimeout(0)
        self._arrivals.append(_Arrival(connection, time.monotonic() + _PATIENCE_S))
        self._selector.register(connection, selectors.EVENT_READ, self._arrivals[-1])

    def _hear(self, arrival: _Arrival) -> None:
        """Read what has come, and once it is enough, let whoever sent it in or turn him away."""
        try:
            data, descriptors, flags, _ = receive_some(arrival.connection, HELLO.size + _MOST_TERMS, 1)
        except BlockingIOError:
            return
        except OSError:
            data, descriptors, flags = b"", [], 0
        arrival.received += data
        arrival.descriptors += descriptors
        has_more = len(arrival.descriptors) > 1 or (arrival.descriptors and flags & socket.MSG_CTRUNC)
        if not data or has_more or len(arrival.received) > HELLO.size + _MOST_TERMS:
            self._drop(arrival)
            return
        if len(arrival.received) < HELLO.size:
            return
        magic, version, rank, size, length, token = HELLO.unpack_from(arrival.received)
        # The token is looked at first: whoever has none learns nothing.
        if not hmac.compare_digest(token, self._ticket.token.encode()) or magic != MAGIC or length > _MOST_TERMS:
            self._drop(arrival)
        elif len(arrival.received) >= HELLO.size + length:
            self._admit(arrival, version, rank, size, bytes(arrival.received[HELLO.size :]))

    def _admit(self, arrival: _Arrival, version: int, rank: int, size: int, text: bytes) -> None:
        """Let a rank in that has shown the token; what does not fit ends the rendezvous for all."""
        try:
            terms = json.loads(text)
            agreed, place, problem = dict(terms["agreed"]), str(terms["namespace"]), str(terms["problem"])
        except (ValueError, KeyError, TypeError, RecursionError):
            self._drop(arrival)
            return
        if size != self._ticket.size or not 0 < rank < size or rank in self._members:
            # None of those that are waited for: he is told, and they may still come.
            with contextlib.suppress(OSError):
                send(arrival.connection, {"problem": f"rank {rank} of {size} is in already, or no rank of this group."})
            self._drop(arrival)
            return
        member = Member(rank, peer(arrival.connection)[0], place, arrival.descriptors, arrival.connection)
        # Blocking from here on: a member is only written to and read from when it is its turn.
        arrival.connection.settimeout(self._waiting.seconds)
        self._arrivals.remove(arrival)
        self._members[rank] = member
        self._selector.modify(arrival.connection, selectors.EVENT_READ, member)
        if not problem and not member.descriptors:  # there was no room for it
            problem = str(SharedMemoryError.of_system(OSError(errno.EMFILE, os.strerror(errno.EMFILE))))
        if problem:
            raise SharedMemoryError(problem)
        if version != VERSION:
            raise ConnectError.other_version(self._numbers[rank])
        for name, own in self._agreed.items():
            if agreed.get(name) != own:
                raise ConnectError.differs(name, self._numbers[rank], agreed.get(name), own, self._numbers[0])

    def _drop(self, arrival: _Arrival) -> None:
        self._selector.unregister(arrival.connection)
        self._arrivals.remove(arrival)
        arrival.connection.close()
        close_all(arrival.descriptors)

    def share(self, fd: int) -> Met:
        """Send everybody the shared memory and all processes."""
        members = [self._members[rank] for rank in range(self._ticket.size)]
        known = [[member.pid, member.namespace] for member in members]
        # Taken out of the members: from here on ``met`` owns them, and ``close`` must not close them again.
        lifelines = [member.descriptors.pop() for member in members]
        for member in members[1:]:
            with contextlib.suppress(OSError):  # he has gone, as will show
                send(_connected(member), {"members": known}, [fd, *lifelines])
        return met(0, fd, known, lifelines)

    def settle(self) -> None:
        """Wait until everybody has mapped the memory, and tell everybody so.

        Raises:
            ConnectError: somebody could not, or is gone.

        """
        until = self._waiting.deadline + _SETTLE_S
        members = [member for member in self._members.values() if member.connection is not None]
        replies = [self._reply(member, until) for member in members]
        # One verdict for all, sent when all have answered: a group forms on every rank or on none.
        for reply in replies:
            check(reply)
        self._tell({})

    def give_up(self, error: BaseException) -> None:
        """Tell everybody who is in why the group does not form."""
        self._tell(refusal(self._numbers[0], error))

    def _reply(self, member: Member, until: float) -> dict[str, Any]:
        """Return what a member says, or what is to be said of it."""
        connection, rank = _connected(member), self._numbers[member.rank]
        connection.settimeout(max(until - time.monotonic(), _LEAST_S))
        if not has_come(connection, until, self._waiting.raise_if_over):
            return refusal(rank, ConnectError.silent(rank))
        try:
            return receive(connection)[0]
        except (OSError, ValueError):
            return refusal(rank, ConnectError.gone(rank))

    def _tell(self, message: dict[str, object]) -> None:
        self._end_listening()  # first: whoever hears this may connect again at once
        for member in self._members.values():
            if member.connection is not None:
                with contextlib.suppress(OSError):
                    send(member.connection, message)

    def close(self) -> None:
        """End all connections, and take the folder away."""
        self._end_listening()
        for member in self._members.values():
            close_all(member.descriptors)
            if member.connection is not None:
                member.connection.close()

    def _end_listening(self) -> None:
        """Turn away whoever is not in, and take the folder away."""
        for arrival in list(self._arrivals):
            self._drop(arrival)
        self._open.close()


def _connected(member: Member) -> socket.socket:
    assert member.connection is not None  # noqa: S101 - only rank 0 has none
    return member.connection


def _make_folder(folder: str) -> None:
    """Make the folder again, which the last group has taken away."""
    try:
        Path(folder).mkdir(mode=0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise ConnectError.folder(folder, f"cannot be made ({error.strerror})") from None


def _check_folder(folder: str) -> None:
    try:
        found = os.lstat(folder)
    except OSError as error:
        raise ConnectError.folder(folder, f"cannot be read ({error.strerror})") from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise ConnectError.folder(folder, "is not this user's alone")
