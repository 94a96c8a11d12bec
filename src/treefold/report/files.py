"""Writing files: whole or not at all, and known to be possible before the work starts."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


def check_writable(path: Path) -> None:
    """Raise the ``OSError`` that writing ``path`` would, leaving nothing behind.

    A long run calls this first, so that it does not fail in the end for a typing error.
    """
    if path.is_dir():
        raise IsADirectoryError(21, "it is a directory", str(path))
    draft = _draft_of(path)
    draft.write_text("", encoding="utf-8")
    draft.unlink()


def write_atomically(path: Path, text: str) -> None:
    """Write ``text`` as UTF-8 such that ``path`` holds all of it or what it held before.

    Raises:
        OSError: the directory of ``path`` is missing, full or not writable.

    """
    draft = _draft_of(path)
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


@contextlib.contextmanager
def written_whole(path: Path) -> Iterator[BinaryIO]:
    """Give a file to write bytes to, which becomes ``path`` when the ``with`` block ends well; else nothing is left.

    Raises:
        OSError: the directory of ``path`` is missing, full or not writable.

    """
    draft = _draft_of(path)
    try:
        with draft.open("wb") as file:
            yield file
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _draft_of(path: Path) -> Path:
    """Return a name beside ``path``: a rename is atomic only within one file system."""
    return path.with_name(f".{path.name}.{os.getpid()}.tmp")
