"""Writing files: whole or not at all, and checked before the work starts."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

fcntl: Any
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

#: The permissions of a new file before the umask is applied, as in ``open``.
NEW_FILE_MODE = 0o666


def readable_text(path: Path) -> str:
    """Return the text of a system file, stripped; empty if there is none that can be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def check_writable(path: Path) -> None:
    """Raise the ``OSError`` that writing ``path`` would raise, and leave nothing behind.

    A long run calls this first, so that it does not fail at its end because of a typing error.
    """
    target, _ = _find_target(path)
    with _draft_beside(target, 0o600):
        pass


def write_atomically(path: Path, contents: str | bytes) -> None:
    """Write bytes, or text as UTF-8, such that ``path`` holds all of it or its old contents.

    Raises:
        OSError: As for ``written_whole``.

    """
    with written_whole(path) as file:
        file.write(contents.encode() if isinstance(contents, str) else contents)


@contextlib.contextmanager
def made_parents(path: Path) -> Iterator[None]:
    """Make the folders that ``path`` needs; if the ``with`` block fails, remove those that are new and empty.

    Raises:
        OSError: One of them cannot be made.

    """
    missing = []
    folder = path.absolute().parent
    while not folder.exists() and folder != folder.parent:
        missing.append(folder)
        folder = folder.parent
    try:
        for folder in reversed(missing):
            folder.mkdir(exist_ok=True)
        yield
    except BaseException:
        for folder in missing:
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise


def clear_drafts(path: Path) -> bool:
    """Remove the drafts of ``path`` that killed runs have left; return whether no other run is writing to it.

    A run locks its draft, and the system unlocks it when the run ends, in whatever way. On systems without such locks,
    nothing is removed.
    """
    if not path.is_dir():
        path = Path(os.path.realpath(path))
    is_free = True
    for draft in sorted(path.absolute().parent.glob(f".treefold-{_digest(path)}-*.tmp")):
        with contextlib.suppress(OSError):
            descriptor = os.open(draft, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
            try:
                if fcntl is None:
                    continue
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if draft.is_dir():
                    shutil.rmtree(draft)
                else:
                    draft.unlink()
            except BlockingIOError:
                is_free = False
            finally:
                os.close(descriptor)
    return is_free


class NewFolder:
    """A folder that is filled before it gets its name."""

    def __init__(self, path: Path) -> None:
        """Write into ``path``, which exists."""
        self._path = path

    def create(self, name: str, mode: int) -> BinaryIO:
        """Return a new file, open for writing, with the permissions ``mode`` less the umask."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        return os.fdopen(os.open(self._path / name, flags, mode), "wb")

    def write(self, name: str, contents: bytes, mode: int) -> None:
        """Write a whole file."""
        with self.create(name, mode) as file:
            file.write(contents)


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[NewFolder]:
    """Yield a folder to write into, which becomes ``path`` if the ``with`` block succeeds; else nothing is left.

    Raises:
        OSError: ``path`` exists and is not an empty folder, or its parent is missing or not writable.

    """
    draft = _draft_name(path)
    draft.mkdir()
    descriptor = os.open(draft, os.O_RDONLY) if fcntl is not None else None
    try:
        if descriptor is not None:
            _lock(descriptor)
        yield NewFolder(draft)
        for written in draft.iterdir():
            with written.open("rb+") as file:
                os.fsync(file.fileno())
        _sync_directory(draft)
        if path.is_dir():
            path.rmdir()  # empty, or this fails
        draft.rename(path)
    finally:
        if descriptor is not None:
            os.close(descriptor)
        shutil.rmtree(draft, ignore_errors=True)
    _sync_directory(path.absolute().parent)


def _lock(descriptor: int) -> None:
    """Lock a draft until it is closed; some network file systems have no locks."""
    if fcntl is not None:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _digest(target: Path) -> str:
    return hashlib.sha256(os.fsencode(target.name)).hexdigest()[:16]


def _draft_name(target: Path) -> Path:
    """Return a unique name beside ``target``, by which later runs recognise drafts of the same output.

    The name has a digest of the target's, which may itself have the greatest allowed length.
    """
    return target.absolute().with_name(f".treefold-{_digest(target)}-{secrets.token_hex(8)}.tmp")


@contextlib.contextmanager
def written_whole(path: Path, *, mode: int = NEW_FILE_MODE) -> Iterator[BinaryIO]:
    """Yield a file to write bytes to, which becomes ``path`` if the ``with`` block succeeds; else nothing is left.

    The file is on disk before it gets its name, so after a power cut there are the old contents or the new ones. A file
    that is replaced keeps its mode; a new one has ``mode`` less the umask. A symbolic link stays, and the file that it
    points to is replaced.

    Raises:
        OSError: The directory of ``path`` is missing, full or not writable; or ``path`` is a directory, a device, a
            pipe, or a link to nothing.

    """
    target, old_mode = _find_target(path)
    with _draft_beside(target, mode if old_mode is None else old_mode) as (draft, file):
        yield file
        file.flush()
        if old_mode is not None and hasattr(os, "fchmod"):
            os.fchmod(file.fileno(), old_mode)  # the umask was applied when the draft was created
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
        # Opened, because the system refuses to follow links that other users left in a shared directory.
        os.close(os.open(path, os.O_WRONLY))
        path = Path(os.path.realpath(path))
    return path, stat.S_IMODE(found.st_mode) & 0o777


@contextlib.contextmanager
def _draft_beside(target: Path, mode: int) -> Iterator[tuple[Path, BinaryIO]]:
    """Create an empty file that no other process can have named or linked; remove it if it still exists in the end.

    The file is in the directory of ``target``, because a rename is atomic only within one file system.
    """
    draft = _draft_name(target)
    try:
        # Not mkstemp: here the system applies the umask and the directory's default access list.
        with open(draft, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            _lock(file.fileno())
            yield draft, file
    finally:
        draft.unlink(missing_ok=True)


def _sync_directory(directory: Path) -> None:
    """Make the rename survive a power cut; Windows and some network file systems cannot."""
    if hasattr(os, "O_DIRECTORY"):
        with contextlib.suppress(OSError):
            descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
