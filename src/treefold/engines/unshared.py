"""Sockets that no child of this process keeps: it would hide from the other ranks that this one has ended."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

#: Where Linux lists a process's descriptors, and all sockets of TCP: their inodes stand in a column of these tables.
_DESCRIPTORS, _TABLES, _INODE = Path("/proc/self/fd"), ("/proc/self/net/tcp", "/proc/self/net/tcp6"), 9
#: The descriptor and the inode of each: a number may be another file's by now.
_unshared: set[tuple[int, int]] = set()
#: What was open when each block began that is under way.
_before: dict[object, set[tuple[int, int]]] = {}


@contextlib.contextmanager
def unshared_sockets() -> Iterator[None]:
    """Let no child of this process keep the sockets of TCP that are opened meanwhile; on Linux.

    Those of Python's other threads are left alone: they are not inherited, and a forked child may need them.
    """
    block = object()
    _before[block] = before = _sockets()
    try:
        yield
    finally:
        now = _sockets()
        # One by one: what another thread has connected since `now` was read stays.
        _unshared.difference_update([there for there in tuple(_unshared) if not _is_open(*there)])
        for descriptor, inode in now - before:
            with contextlib.suppress(OSError):
                if os.get_inheritable(descriptor):
                    os.set_inheritable(descriptor, False)  # noqa: FBT003
                    _unshared.add((descriptor, inode))
        _before.pop(block, None)  # none in a child that a signal handler has forked meanwhile


def _is_open(descriptor: int, inode: int) -> bool:
    with contextlib.suppress(OSError):
        return os.fstat(descriptor).st_ino == inode
    return False


def _sockets() -> set[tuple[int, int]]:
    """Return this process's sockets of TCP, without a touch: Python's own objects of sockets change their modes."""
    inodes, found = set[str](), set[tuple[int, int]]()
    for table in _TABLES:
        with contextlib.suppress(OSError):
            inodes.update(line.split()[_INODE] for line in Path(table).read_text(encoding="ascii").splitlines()[1:])
    with contextlib.suppress(OSError):
        for path in _DESCRIPTORS.iterdir():
            with contextlib.suppress(OSError):
                status = os.fstat(int(path.name))
                if stat.S_ISSOCK(status.st_mode) and str(status.st_ino) in inodes:
                    found.add((int(path.name), status.st_ino))
    return found


def _after_fork_in_child() -> None:
    while _before:  # another thread of the parent was connecting
        _, before = _before.popitem()
        _unshared.update(one for one in _sockets() - before if os.get_inheritable(one[0]))
    if not _unshared:
        return
    # Replaced, not closed: the engine's objects are still there in the child, and must find no other file under the
    # number.
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor, inode in _unshared:
        if _is_open(descriptor, inode):
            os.dup2(nothing, descriptor, inheritable=False)
    os.close(nothing)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
