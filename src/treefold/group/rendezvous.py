"""How the ranks of one host find each other: at a Unix socket where rank 0 lets in who shows the token.

Every rank hands in a descriptor of its own process, by which the others see it end, and gets those of all others and
the shared memory. Descriptors are sent, never fetched, so that no right over other processes is needed; and that they
arrive proves that the ranks share a host. The folder and the socket are gone before the first call.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import selectors
import shutil
import socket
import stat
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from treefold.errors import ConnectError, SharedMemoryError
from treefold.group.ticket import Ticket
from treefold.group.wire import NO_PIDFD, namespace, own_pidfd, peer, receive, send

#: Magic, version of this exchange, rank, size, length of the terms, token. Behind it: the terms, as JSON.
_HELLO = struct.Struct("<8sIIII64s")
_MAGIC, _VERSION = b"treefold", 1
_MOST_TERMS = 4096
#: Whoever does not say who he is in this time is turned away, and more than so many are not listened to at once.
_PATIENCE_S, _MOST_STRANGERS = 5.0, 64
_RETRY_S = 0.02


class Met(NamedTuple):
    """What a rank has after the rendezvous.

    ``fd``: of the shared memory. ``pidfds``: by rank, -1 for this rank and where there is none. ``pids``: by rank, 0
    where this process cannot see it.
    """

    fd: int
    pidfds: list[int]
    pids: list[int]


@dataclass
class Member:
    """A rank as rank 0 knows it."""

    rank: int
    pid: int
    namespace: str
    pidfd: int
    connection: socket.socket | None = None


@dataclass
class _Arrival:
    """A connection that has not shown a token yet."""

    connection: socket.socket
    until: float
    received: bytearray = field(default_factory=bytearray)
    descriptors: list[int] = field(default_factory=list)


class Host:
    """Rank 0's side: it listens, lets the others in, and sends them what they need."""

    def __init__(self, ticket: Ticket, agreed: dict[str, object], seconds: float) -> None:
        """Listen in the ticket's folder. ``agreed``: what must be the same on all ranks."""
        self._ticket, self._agreed = ticket, agreed
        self._deadline, self._seconds = time.monotonic() + seconds, seconds
        self._members = {0: Member(0, os.getpid(), namespace(), own_pidfd())}
        _check_folder(ticket.folder)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            self._listener.bind(ticket.address)
            self._listener.listen(ticket.size + _MOST_STRANGERS)
            self._listener.settimeout(0)
        except OSError as error:
            self.close()
            raise ConnectError.folder(ticket.folder, f"refuses a socket ({error.strerror})") from None

    def gather(self) -> None:
        """Wait until all ranks have come.

        Raises:
            ConnectError: some did not come in time, or one does not fit.

        """
        arrivals: dict[socket.socket, _Arrival] = {}
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            try:
                while len(self._members) < self._ticket.size:
                    self._look(selector, arrivals)
            finally:
                for arrival in arrivals.values():
                    _drop(arrival)

    def _look(self, selector: selectors.BaseSelector, arrivals: dict[socket.socket, _Arrival]) -> None:
        now = time.monotonic()
        if now >= self._deadline:
            missing = sorted(set(range(self._ticket.size)) - set(self._members))
            error = ConnectError.late(missing, self._seconds)
            self.refuse(str(error))
            raise error
        for key, _ in selector.select(min(self._deadline - now, 0.1)):
            if key.fileobj is self._listener:
                self._accept(selector, arrivals)
            else:
                arrival = arrivals[key.fileobj]  # type: ignore[index] # a socket: nothing else is registered
                if self._is_done(arrival):
                    selector.unregister(arrival.connection)
                    del arrivals[arrival.connection]
        for arrival in [one for one in arrivals.values() if one.until < time.monotonic()]:
            selector.unregister(arrival.connection)
            del arrivals[arrival.connection]
            _drop(arrival)

    def _accept(self, selector: selectors.BaseSelector, arrivals: dict[socket.socket, _Arrival]) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:  # whoever it was has gone, or there are no descriptors: the others may still come
            return
        if len(arrivals) >= _MOST_STRANGERS or peer(connection)[1] != os.getuid():
            connection.close()
            return
        connection.settimeout(0)
        arrivals[connection] = _Arrival(connection, time.monotonic() + _PATIENCE_S)
        selector.register(connection, selectors.EVENT_READ)

    def _is_done(self, arrival: _Arrival) -> bool:
        """Read what has come; tell whether the connection is decided, by admission or by turning away."""
        try:
            data, descriptors, _, _ = socket.recv_fds(arrival.connection, _HELLO.size + _MOST_TERMS, 1)
        except BlockingIOError:
            return False
        except OSError:
            data, descriptors = b"", []
        arrival.received += data
        arrival.descriptors += descriptors
        if not data or len(arrival.descriptors) > 1 or len(arrival.received) > _HELLO.size + _MOST_TERMS:
            _drop(arrival)
            return True
        if len(arrival.received) < _HELLO.size:
            return False
        magic, version, rank, size, length, token = _HELLO.unpack_from(arrival.received)
        # The token is looked at first: whoever has none learns nothing.
        if not hmac.compare_digest(token, self._ticket.token.encode()) or magic != _MAGIC or length > _MOST_TERMS:
            _drop(arrival)
            return True
        if len(arrival.received) < _HELLO.size + length:
            return False
        self._admit(arrival, version, rank, size, bytes(arrival.received[_HELLO.size :]))
        return True

    def _admit(self, arrival: _Arrival, version: int, rank: int, size: int, text: bytes) -> None:
        """Take a rank in that has shown the token; what does not fit ends the rendezvous for all."""
        try:
            terms = json.loads(text)
            agreed, place = dict(terms["agreed"]), str(terms["namespace"])
        except (ValueError, KeyError, TypeError):
            _drop(arrival)
            return
        problem = ""
        if version != _VERSION or size != self._ticket.size or not 0 < rank < size:
            problem = f"rank {rank} comes from another version or another group of {size}."
        elif rank in self._members:
            problem = f"two processes say that they are rank {rank}."
        elif agreed != self._agreed:
            name = next((name for name in self._agreed if agreed.get(name) != self._agreed[name]), "terms")
            problem = f"rank {rank} has {name} {agreed.get(name)!r} where rank 0 has {self._agreed.get(name)!r}."
        arrival.connection.settimeout(self._seconds)
        pidfd = arrival.descriptors[0] if arrival.descriptors else NO_PIDFD
        member = Member(rank, peer(arrival.connection)[0], place, pidfd, arrival.connection)
        if problem:
            with contextlib.suppress(OSError):
                send(arrival.connection, {"problem": problem})
            self.refuse(problem)
            raise ConnectError.refused(problem)
        self._members[rank] = member

    def share(self, fd: int) -> Met:
        """Send everybody the shared memory and all processes."""
        members = [self._members[rank] for rank in range(self._ticket.size)]
        known = [[member.pid, member.namespace, member.pidfd != NO_PIDFD] for member in members]
        pidfds = [member.pidfd for member in members if member.pidfd != NO_PIDFD]
        for member in members[1:]:
            send(_connected(member), {"members": known}, [fd, *pidfds])
        return _met(0, fd, known, pidfds)

    def settle(self) -> None:
        """Wait until everybody has mapped the memory, and tell everybody so.

        Raises:
            ConnectError: somebody could not, or is gone.

        """
        said: dict[str, object] = {}
        for rank in range(1, self._ticket.size):
            try:
                reply, _ = receive(_connected(self._members[rank]))
            except (OSError, ValueError):
                reply = {"problem": f"rank {rank} has gone."}
            said = said if said.get("problem") else reply
        self.refuse(str(said.get("problem", "")), is_memory=bool(said.get("is_memory")))
        _check(said)

    def refuse(self, problem: str, *, is_memory: bool = False) -> None:
        """Tell everybody who is in that the group does not form; without a problem, that it has formed."""
        for member in self._members.values():
            if member.connection is not None:
                with contextlib.suppress(OSError):
                    send(member.connection, {"problem": problem, "is_memory": is_memory})

    def close(self) -> None:
        """End listening, and take the folder away."""
        self._listener.close()
        for member in self._members.values():
            if member.connection is not None:
                member.connection.close()
        shutil.rmtree(self._ticket.folder, ignore_errors=True)


class Guest:
    """The side of all other ranks."""

    def __init__(self, ticket: Ticket, agreed: dict[str, object], seconds: float) -> None:
        """Show the token at rank 0's door."""
        self._rank = ticket.rank
        self._connection = _knock(ticket, seconds)
        text = json.dumps({"agreed": agreed, "namespace": namespace()}).encode()
        hello = _HELLO.pack(_MAGIC, _VERSION, ticket.rank, ticket.size, len(text), ticket.token.encode())
        pidfd = own_pidfd()
        try:
            socket.send_fds(self._connection, [hello + text], [] if pidfd == NO_PIDFD else [pidfd])
        except OSError:
            raise ConnectError.turned_away() from None
        finally:
            if pidfd != NO_PIDFD:
                os.close(pidfd)

    def join(self) -> Met:
        """Wait for the shared memory.

        Raises:
            ConnectError: rank 0 has turned this rank away, or has ended.

        """
        reply, descriptors = self._next()
        return _met(self._rank, descriptors[0], reply["members"], descriptors[1:])

    def settle(self, problem: str = "") -> None:
        """Say that this rank has mapped the memory, or why not, and wait for the others.

        Raises:
            ConnectError: somebody has not.

        """
        with contextlib.suppress(OSError):
            send(self._connection, {"problem": problem, "is_memory": bool(problem)})
        self._next()

    def _next(self) -> tuple[dict[str, Any], list[int]]:
        try:
            reply, descriptors = receive(self._connection)
        except (OSError, ValueError):
            raise ConnectError.turned_away() from None
        _check(reply)
        return reply, descriptors

    def close(self) -> None:
        """End the connection."""
        self._connection.close()


def is_listening(ticket: Ticket) -> bool:
    """Tell whether somebody listens where the ticket says."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as connection:
        return connection.connect_ex(ticket.address) == 0


def _knock(ticket: Ticket, seconds: float) -> socket.socket:
    """Connect to rank 0, which may not listen yet."""
    deadline = time.monotonic() + seconds
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            connection.connect(ticket.address)
        except OSError:
            connection.close()
            if time.monotonic() >= deadline:
                raise ConnectError.late([0], seconds) from None
            time.sleep(_RETRY_S)
            continue
        if peer(connection)[1] != os.getuid():
            connection.close()
            raise ConnectError.folder(ticket.folder, "has a socket of another user")
        connection.settimeout(seconds)
        return connection


def _check(reply: Mapping[str, object]) -> None:
    """Raise what a reply says.

    Raises:
        SharedMemoryError: a rank could not make or map the memory.
        ConnectError: anything else that keeps the group from forming.

    """
    problem = str(reply.get("problem") or "")
    if problem and reply.get("is_memory"):
        raise SharedMemoryError(problem)
    if problem:
        raise ConnectError.refused(problem)


def _met(rank: int, fd: int, known: Sequence[Sequence[object]], pidfds: Sequence[int]) -> Met:
    given = iter(pidfds)
    by_rank = [next(given) if has_pidfd else NO_PIDFD for _, _, has_pidfd in known]
    own = namespace()
    pids = [int(pid) if place == own else 0 for pid, place, _ in known]  # type: ignore[call-overload]
    if by_rank[rank] != NO_PIDFD:
        os.close(by_rank[rank])
        by_rank[rank] = NO_PIDFD
    return Met(fd, by_rank, pids)


def _connected(member: Member) -> socket.socket:
    assert member.connection is not None  # noqa: S101 - only rank 0 has none
    return member.connection


def _drop(arrival: _Arrival) -> None:
    for descriptor in arrival.descriptors:
        os.close(descriptor)
    arrival.connection.close()


def _check_folder(folder: str) -> None:
    try:
        found = os.lstat(folder)
    except OSError as error:
        raise ConnectError.folder(folder, f"cannot be read ({error.strerror})") from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise ConnectError.folder(folder, "is not this user's alone")
