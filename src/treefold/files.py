"""Writing files: whole or not at all, and known to be possible before the work starts."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

#: What a new file may be read and written by, less what the umask takes away: the mode of ``open``.
NEW_FILE_MODE = 0o666


def check_writable(path: Path) -> None:
    """Raise the ``OSError`` that writing ``path`` would, leaving nothing behind.

    A long run calls this first, so that it does not fail in the end for a typing error.
    """
    target, _ = _find_target(path)
    with _draft_beside(target, 0o600):
        pass


def write_atomically(path: Path, contents: str | bytes) -> None:
    """Write bytes, or text as UTF-8, such that ``path`` holds all of it or what it held before.

    Raises:
        OSError: as for ``written_whole``.

    """
    with written_whole(path) as file:
        file.write(contents.encode() if isinstance(contents, str) else contents)


@contextlib.contextmanager
def written_whole(path: Path, *, mode: int = NEW_FILE_MODE) -> Iterator[BinaryIO]:
    """Give a file to write bytes to, which becomes ``path`` when the ``with`` block ends well; else nothing is left.

    The file is on disk before it has its name, so that a power cut leaves the old contents or the new ones. A file that
    is replaced keeps its mode; a new one has ``mode`` less the umask. A symbolic link stays, and the file that it
    points to is replaced.

    Raises:
        OSError: the directory of ``path`` is missing, full or not writable; ``path`` is a directory, a device, a pipe,
            or a link to nothing.

    """
    target, old_mode = _find_target(path)
    with _draft_beside(target, mode if old_mode is None else old_mode) as (draft, file):
        yield file
        file.flush()
        if old_mode is not None and hasattr(os, "fchmod"):
            os.fchmod(file.fileno(), old_mode)  # what the umask took away when the draft was created
        os.fsync(file.fileno())
        file.close()  # Windows does not rename open files
        draft.replace(target)
    _sync_directory(target.parent)


def _find_target(path: Path) -> tuple[Path, int | None]:
    """Return the file to replace, and its mode; None if it does not exist yet."""
    try:
        found = path.stat()
    except FileNotFoundError:
        if path.is_symlink():
            raise
        return path, None
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, "it is a directory", str(path))
    if not stat.S_ISREG(found.st_mode):  # a rename would put a file in the place of /dev/null
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    if path.is_symlink():
        # By opening, because the system refuses to follow links that others left in a shared directory.
        os.close(os.open(path, os.O_WRONLY))
        path = Path(os.path.realpath(path))
    return path, stat.S_IMODE(found.st_mode) & 0o777


@contextlib.contextmanager
def _draft_beside(target: Path, mode: int) -> Iterator[tuple[Path, BinaryIO]]:
    """Create an empty file that nobody else can have named or linked, and remove it if it is still there in the end.

    It lies in the directory of ``target``, because a rename is atomic only within one file system. Its name has nothing
    of the target's, which may be as long as names can be.
    """
    draft = target.with_name(f".treefold-{secrets.token_hex(8)}.tmp")
    try:
        # Not mkstemp: here the system applies the umask and the directory's default access list.
        with open(draft, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            yield draft, file
    finally:
        draft.unlink(missing_ok=True)


def _sync_directory(directory: Path) -> None:
    """Let the rename outlast a power cut, where the system can: Windows and some network file systems cannot."""
    if hasattr(os, "O_DIRECTORY"):
        with contextlib.suppress(OSError):
            descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
