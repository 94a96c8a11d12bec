"""Messages with descriptors between processes of one host, and what the kernel says of who is at the other end."""

from __future__ import annotations

import errno
import json
import os
import select
import socket
import struct
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from treefold.engines.meeting import reason
from treefold.errors import ConnectError, GroupError, SharedMemoryError

#: Magic, version of this exchange, rank, size, length of the terms, token. Behind it: the terms, as JSON.
HELLO = struct.Struct("<8sIIII64s")
MAGIC, VERSION = b"treefold", 1
_LENGTH = struct.Struct("<I")
_MOST_REPLY = 1 << 20
#: A message carries 253 descriptors at most.
_MOST_DESCRIPTORS = 200
_NONE = -1
_RETRY_S = 0.001
_LOOK_MS = 50
#: What the system answers where a process, or all of them, may open no more.
NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})


def send(connection: socket.socket, message: Mapping[str, Any], descriptors: Sequence[int] = ()) -> None:
    """Send a message, and descriptors a few at a time, each batch behind one byte."""
    text = json.dumps({**message, "descriptors": len(descriptors)}).encode()
    connection.sendall(_LENGTH.pack(len(text)) + text)
    for start in range(0, len(descriptors), _MOST_DESCRIPTORS):
        send_some(connection, b"d", descriptors[start : start + _MOST_DESCRIPTORS])


def send_some(connection: socket.socket, data: bytes, descriptors: Sequence[int]) -> None:
    """Send bytes, with as many descriptors as go with one message."""
    until = time.monotonic() + (connection.gettimeout() or 0)
    while True:
        try:
            # The kernel holds the descriptors until they are received, so the sender may close its own at once.
            socket.send_fds(connection, [data], list(descriptors))
        except OSError as error:
            # A user may only have so many descriptors on their way; the others receive theirs in the meantime.
            if error.errno != errno.ETOOMANYREFS or time.monotonic() > until:
                raise
            time.sleep(_RETRY_S)
        else:
            return


def receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Return the next message and its descriptors.

    Raises:
        OSError: the connection has ended, or this process has no room for descriptors.
        ValueError: it is no message.

    """
    (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
    if length > _MOST_REPLY:
        raise ValueError(length)
    message = json.loads(_exactly(connection, length))
    descriptors: list[int] = []
    while len(descriptors) < message["descriptors"]:
        data, batch, flags, _ = receive_some(connection, 1, _MOST_DESCRIPTORS)
        descriptors += batch
        if not data or not batch or flags & socket.MSG_CTRUNC:
            close_all(descriptors)
            # A sender that is interrupted says other words where descriptors should be.
            raise OSError(errno.EMFILE if flags & socket.MSG_CTRUNC else errno.ECONNRESET, os.strerror(errno.EMFILE))
    return message, descriptors


def has_come(connection: socket.socket, until: float, look: Callable[[], None]) -> bool:
    """Wait until there is something to read, or the other end is gone; call ``look`` again and again meanwhile."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    while not poll.poll(_LOOK_MS):
        look()
        if time.monotonic() >= until:
            return False
    return True


def receive_some(connection: socket.socket, nbytes: int, count: int) -> tuple[bytes, list[int], int, Any]:
    """Return bytes, descriptors that no other program inherits, flags and the sender's address."""
    return socket.recv_fds(connection, nbytes, count, socket.MSG_CMSG_CLOEXEC)


def close_all(descriptors: Sequence[int]) -> None:
    """Close descriptors, but for those that are none."""
    for descriptor in descriptors:
        if descriptor != _NONE:
            os.close(descriptor)


def _exactly(connection: socket.socket, count: int) -> bytes:
    parts: list[bytes] = []
    for part in iter(lambda: connection.recv(count - sum(map(len, parts))), b""):
        parts.append(part)
        if sum(map(len, parts)) == count:
            return b"".join(parts)
    raise ConnectionResetError(count)


def peer(connection: socket.socket) -> tuple[int, int]:
    """Return the process and the user at the other end, as the kernel knows them."""
    pid, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid


class Lifeline:
    """A pipe by which others see this process end, or become another program: then the system closes its own end.

    A forked child would keep that end open, so it closes it first of all. ``other_end`` is for others; whoever makes a
    lifeline sends it away and closes it.
    """

    def __init__(self) -> None:
        """Open both ends, which no other program inherits."""
        self.other_end, own_end = os.pipe()
        # A finalizer closes once, however often it is called; the number could be another file's by then.
        self.cut = weakref.finalize(self, os.close, own_end)
        self.cut.atexit = False  # until the process has ended, or its group has been closed
        _lifelines.add(self)


_lifelines: weakref.WeakSet[Lifeline] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    # The child may live longer than the parent, whose end would then go unnoticed.
    for lifeline in list(_lifelines):
        lifeline.cut()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def namespace() -> str:
    """Return the name of the space in which this process's number means something; empty if it is not to be had."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


class Met(NamedTuple):
    """What a rank has after the rendezvous.

    ``fd``: of the shared memory. ``lifelines``: the others' by rank, -1 for this rank. ``pids``: by rank, 0 where this
    process cannot see it.
    """

    fd: int
    lifelines: list[int]
    pids: list[int]


def refusal(rank: int, error: BaseException) -> dict[str, object]:
    """Return the message by which the others of a host hear why a rank gives up; ``check`` raises that."""
    why = error if isinstance(error, GroupError) else ConnectError.told(*reason(rank, error))
    problem = str(why).removeprefix(str(ConnectError.refused("")))
    return {"problem": problem, "is_memory": isinstance(why, SharedMemoryError), "ranks": list(why.ranks)}


def check(reply: Mapping[str, Any]) -> None:
    """Raise what a reply says.

    Raises:
        SharedMemoryError: a rank could not make or map the memory.
        ConnectError: anything else that keeps the group from forming.

    """
    problem = str(reply.get("problem") or "")
    if problem:
        error = SharedMemoryError(problem) if reply.get("is_memory") else ConnectError.refused(problem)
        raise error.blaming(*reply.get("ranks", ()))


def met(rank: int, fd: int, known: Sequence[Sequence[object]], lifelines: Sequence[int]) -> Met:
    """Return what a rank has after the rendezvous; the other end of its own lifeline is closed."""
    own = namespace()
    pids = [int(pid) if place == own else 0 for pid, place in known]  # type: ignore[call-overload]
    close_all([lifelines[rank]])
    return Met(fd, [*lifelines[:rank], _NONE, *lifelines[rank + 1 :]], pids)
