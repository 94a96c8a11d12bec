"""Messages with descriptors between processes of one host, and pipes by which one sees that another has ended."""

from __future__ import annotations

import errno
import json
import os
import socket
import struct
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from treefold.engines.times import RETRY_S

_MOST_BYTES = 1 << 16
#: A message carries 253 descriptors at most.
_MOST_DESCRIPTORS = 200


def new_socket() -> socket.socket:
    """Return a Unix socket that keeps messages apart, and that no other program inherits."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)


def send(connection: socket.socket, message: Mapping[str, Any], descriptors: Sequence[int] = ()) -> None:
    """Send a message, and descriptors, as many with each part as go."""
    text = json.dumps({**message, "descriptors": len(descriptors)}).encode()
    _send_part(connection, text, descriptors[:_MOST_DESCRIPTORS])
    for start in range(_MOST_DESCRIPTORS, len(descriptors), _MOST_DESCRIPTORS):
        _send_part(connection, b"d", descriptors[start : start + _MOST_DESCRIPTORS])


def _send_part(connection: socket.socket, data: bytes, descriptors: Sequence[int]) -> None:
    until = time.monotonic() + (connection.gettimeout() or 0)
    while True:
        try:
            # The kernel holds the descriptors until they are received, so the sender may close its own at once.
            socket.send_fds(connection, [data], list(descriptors))
        except OSError as error:
            # The system bounds the descriptors of a user on their way; the others receive theirs in the meantime.
            if error.errno != errno.ETOOMANYREFS or time.monotonic() > until:
                raise
            time.sleep(RETRY_S)
        else:
            return


def receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Return the next message and its descriptors, which no other program inherits.

    Raises:
        OSError: the connection has ended, or this process has no room for descriptors.
        ValueError: it is no message.

    """
    descriptors: list[int] = []
    try:
        message = json.loads(_receive_part(connection, descriptors))
        while len(descriptors) < message["descriptors"]:
            _receive_part(connection, descriptors)
    except (KeyError, TypeError, RecursionError):
        close_all(descriptors)
        raise ValueError(connection) from None
    except BaseException:
        close_all(descriptors)
        raise
    return message, descriptors


def _receive_part(connection: socket.socket, descriptors: list[int]) -> bytes:
    try:
        received = socket.recv_fds(connection, _MOST_BYTES, _MOST_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
    except ConnectionResetError:
        # The other end has closed with a message unread. The kernel reports this once; then what it sent can be read.
        received = socket.recv_fds(connection, _MOST_BYTES, _MOST_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
    data, batch, flags, _ = received
    descriptors += batch
    if flags & socket.MSG_CTRUNC:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    if not data:
        raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
    return data


def close_all(descriptors: Sequence[int]) -> None:
    """Close descriptors; negative numbers stand for none."""
    for descriptor in descriptors:
        if descriptor >= 0:
            os.close(descriptor)


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
    # The child may live longer than the parent, and would hide that it has ended.
    for lifeline in list(_lifelines):
        lifeline.cut()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
