"""Where the ranks of a process group listen for each other's messages, and the sockets that they do it with."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import selectors
import socket
import weakref
from typing import Any, NamedTuple, TypeVar

from treefold.group.contributions import KIND
from treefold.group.descriptor_passing import peer
from treefold.group.link import Link
from treefold.group.rank_sources import host_key

_ADDRESSES = 34
_Opened = TypeVar("_Opened")


class Address(NamedTuple):
    """The name under which a rank listens once it has a message to send or to receive, and what others show there.

    The name is in Linux's abstract namespace: it goes with the socket, however the rank ends, and leaves no file. Any
    program with the same network can connect to such a name, so both ends ask the kernel whose process the other one
    is. ``network``: what differs between processes for which the name is not the same.
    """

    name: str
    token: str
    network: str

    @property
    def path(self) -> bytes:
        """The name as the socket module takes it."""
        return b"\0" + self.name.encode()


def tell_addresses(link: Link) -> list[Address]:
    """Return the address of every rank. Nothing is there yet; names are random, so nobody else comes first.

    Raises:
        GroupError: a rank has ended or is late; the link is closed then.

    """
    try:
        own = [f"treefold-{secrets.token_hex(16)}", secrets.token_hex(32), host_key()]
        kind = KIND.pack(_ADDRESSES, 0, 0, 0, bytes(16))
        said = link.agree(kind, json.dumps(own).encode(), words="init_process_group")
        return [Address(*json.loads(blob)) for blob in said]
    except BaseException as error:
        link.close(error)
        raise


class Endpoint:
    """What a rank needs to carry messages: a socket where others connect, one that wakes its thread, and a selector.

    ``close`` closes them.
    """

    def __init__(self, address: Address) -> None:
        """Open them.

        Raises:
            OSError: the system has no descriptors left.

        """
        with contextlib.ExitStack() as undone:
            self.listener = undone.enter_context(_noted(_new_socket()))
            self.waker, self.woken = (undone.enter_context(_noted(one)) for one in socket.socketpair())
            self.waker.setblocking(False)  # noqa: FBT003 - the socket module's signature
            self.selector = undone.enter_context(_noted(selectors.DefaultSelector()))
            self.listener.bind(address.path)
            self.listener.listen()
            self.selector.register(self.listener, selectors.EVENT_READ)
            self.selector.register(self.woken, selectors.EVENT_READ)
            self.close = undone.pop_all().close

    def wake(self) -> None:
        """Let the selector return."""
        with contextlib.suppress(OSError):  # full, so it is awake; or closed
            self.waker.send(b"w")

    def accept(self) -> socket.socket | None:
        """Return the next connection; None if another user has opened it.

        Raises:
            OSError: there is none, or no descriptor for it.

        """
        return _own(self.listener.accept()[0])


def connect(address: Address) -> socket.socket | None:
    """Return a connection to an address; None if nobody listens there now, or there is no descriptor for it."""
    try:
        connection = _new_socket()
    except OSError:
        return None
    if connection.connect_ex(address.path):
        connection.close()
        return None
    return _own(connection)


def _own(connection: socket.socket) -> socket.socket | None:
    """Return a connection if this user's process is at its other end, else close it."""
    if peer(connection)[1] == os.getuid():
        return _noted(connection)
    connection.close()
    return None


def _new_socket() -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    made.setblocking(False)  # noqa: FBT003 - the socket module's signature
    return made


def _noted(opened: _Opened) -> _Opened:
    """Note what a forked child has to close, and return it."""
    _opened.add(opened)
    return opened


_opened: weakref.WeakSet[Any] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    # Others see this process end by its connections, which a child would keep open. Closed only, because a shutdown
    # would end them for the parent, too.
    for opened in list(_opened):
        opened.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
