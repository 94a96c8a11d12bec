"""Messages with descriptors between processes of one host, and what the kernel says of who is at the other end."""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_LENGTH = struct.Struct("<I")
_MOST_REPLY = 1 << 20
#: A message carries 253 descriptors at most.
_MOST_DESCRIPTORS = 200
NO_PIDFD = -1


def send(connection: socket.socket, message: Mapping[str, Any], descriptors: Sequence[int] = ()) -> None:
    """Send a message, and descriptors a few at a time, each batch behind one byte."""
    text = json.dumps({**message, "descriptors": len(descriptors)}).encode()
    connection.sendall(_LENGTH.pack(len(text)) + text)
    for start in range(0, len(descriptors), _MOST_DESCRIPTORS):
        socket.send_fds(connection, [b"d"], list(descriptors[start : start + _MOST_DESCRIPTORS]))


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
        data, batch, _, _ = socket.recv_fds(connection, 1, _MOST_DESCRIPTORS)
        if not data or not batch:  # no room in this process's table of descriptors
            raise OSError(len(descriptors))
        descriptors += batch
    return message, descriptors


def _exactly(connection: socket.socket, count: int) -> bytes:
    parts: list[bytes] = []
    for part in iter(lambda: connection.recv(count - sum(map(len, parts))), b""):
        parts.append(part)
        if sum(map(len, parts)) == count:
            return b"".join(parts)
    raise OSError(count)


def peer(connection: socket.socket) -> tuple[int, int]:
    """Return the process and the user at the other end, as the kernel knows them."""
    pid, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return pid, uid


def own_pidfd() -> int:
    """Return a descriptor of this process, by which others see it end."""
    try:
        return os.pidfd_open(os.getpid())
    except OSError:  # an old kernel, or one that forbids it: deaths are then seen by the deadline only
        return NO_PIDFD


def namespace() -> str:
    """Return the name of the space in which this process's number means something; empty if it is not to be had."""
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""
