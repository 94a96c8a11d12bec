"""Sockets that no child of this process keeps: it would hide from the other ranks that this one has ended."""

from __future__ import annotations

import contextlib
import os
import pathlib
import socket
import stat
from collections.abc import Iterator

#: Where the system lists a process's descriptors; on Windows, which does not fork, nowhere.
_DESCRIPTORS = pathlib.Path("/dev/fd")
#: The descriptor and the inode of each: a number may be another file's by now.
_unshared: set[tuple[int, int]] = set()


@contextlib.contextmanager
def unshared_sockets() -> Iterator[None]:
    """Let no child of this process keep the network sockets that are opened meanwhile."""
    before = _sockets()
    try:
        yield
    finally:
        _unshared.intersection_update(before)  # those that are still there
        for descriptor, inode in _sockets() - before:
            with contextlib.suppress(OSError):
                os.set_inheritable(descriptor, False)  # noqa: FBT003
                _unshared.add((descriptor, inode))


def _sockets() -> set[tuple[int, int]]:
    """Return this process's sockets of TCP."""
    found = set()
    with contextlib.suppress(OSError):
        for path in _DESCRIPTORS.iterdir():
            descriptor = int(path.name)
            with contextlib.suppress(OSError):
                status = os.fstat(descriptor)
                if stat.S_ISSOCK(status.st_mode) and _is_of_a_network(descriptor):
                    found.add((descriptor, status.st_ino))
    return found


def _is_of_a_network(descriptor: int) -> bool:
    lent = socket.socket(fileno=descriptor)
    try:
        return lent.family in (socket.AF_INET, socket.AF_INET6)
    finally:
        lent.detach()


def _after_fork_in_child() -> None:
    # Replaced, not closed: the engine's objects are still there in the child, and must find no other file under the
    # number.
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor, inode in _unshared:
        with contextlib.suppress(OSError):
            if os.fstat(descriptor).st_ino == inode:
                os.dup2(nothing, descriptor, inheritable=False)
    os.close(nothing)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
