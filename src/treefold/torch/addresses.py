"""Where the ranks of a process group listen for each other's messages, and the sockets that they do it with."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import selectors
import socket
import weakref
from typing import Any, NamedTuple, TypeVar

from treefold.errors import GroupError
from treefold.group.descriptor_passing import peer
from treefold.group.links.link import Link
from treefold.group.links.protocol import CallKind, call_key
from treefold.group.rank_sources import host_key

_Opened = TypeVar("_Opened")


class Address(NamedTuple):
    """The name under which a rank listens until it leaves its group, and what others show there.

    The name is in Linux's abstract namespace: it goes with the socket, however the rank ends, and leaves no file. Any
    program with the same network can connect to such a name, and take it once the rank is gone. So whoever connects
    asks the kernel who has begun to listen there, and shows the token. ``network``: what differs between processes for
    which the name is not the same.
    """

    name: str
    token: str
    network: str

    @property
    def path(self) -> bytes:
        """The name as the socket module takes it."""
        return b"\0" + self.name.encode()


def tell_addresses(link: Link) -> tuple[list[Address], socket.socket]:
    """Return the address of every rank, and the socket at which this one listens.

    All of them listen before anyone knows where, so whoever does not listen any more is gone.

    Raises:
        GroupError: a rank has ended or is late, or there is no descriptor left.

    """
    own = Address(f"treefold-{secrets.token_hex(16)}", secrets.token_hex(32), host_key())
    listener = listen(own)
    try:
        said = link.agree(call_key(CallKind.ADDRESSES), json.dumps(own).encode(), description="init_process_group")
        return [Address(*json.loads(blob)) for blob in said], listener
    except BaseException:
        listener.close()
        raise


def listen(address: Address) -> socket.socket:
    """Return a socket where others connect.

    Raises:
        GroupError: the system has no descriptors left.

    """
    try:
        with contextlib.ExitStack() as undone:
            listener = undone.enter_context(_noted(_new_socket()))
            listener.bind(address.path)
            listener.listen()
            undone.pop_all()
    except OSError as error:
        raise GroupError.no_mail(error) from None
    return listener


class Endpoint:
    """What a rank needs to carry messages: its socket where others connect, one that wakes its thread, and a selector.

    ``close`` closes them.
    """

    def __init__(self, listener: socket.socket) -> None:
        """Open what is not open yet.

        Raises:
            OSError: the system has no descriptors left.

        """
        with contextlib.ExitStack() as undone:
            self.listener = listener
            self.waker, self.woken = (undone.enter_context(_noted(one)) for one in socket.socketpair())
            self.waker.setblocking(False)  # noqa: FBT003 - the socket module's signature
            self.selector = undone.enter_context(_noted(selectors.DefaultSelector()))
            self.selector.register(self.listener, selectors.EVENT_READ)
            self.selector.register(self.woken, selectors.EVENT_READ)
            self.close = undone.pop_all().close

    def wake(self) -> None:
        """Let the selector return."""
        with contextlib.suppress(OSError):  # full, so it is awake; or closed
            self.waker.send(b"w")

    def accept(self) -> socket.socket:
        """Return the next connection.

        Raises:
            OSError: there is none, or no descriptor for it.

        """
        return _noted(self.listener.accept()[0])

    def lines(self) -> list[Any]:
        """Return what is registered with the connections, in the order in which they came."""
        return [key.data for key in self.selector.get_map().values() if key.data is not None]


def connect(address: Address, user: int) -> socket.socket:
    """Return a connection to an address where a user has begun to listen.

    Raises:
        ConnectionRefusedError: nobody listens there any more.
        PermissionError: another user does.
        OSError: there is no descriptor for it, or too many others wait to be accepted.

    """
    connection = _noted(_new_socket())
    try:
        connection.connect(address.path)
        if peer(connection)[1] != user:
            raise PermissionError(errno.EPERM, "another user listens there")
    except OSError:
        connection.close()
        raise
    return connection


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
