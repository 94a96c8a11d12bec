"""Files that commands write: refused before the work if they cannot be."""

from __future__ import annotations

from pathlib import Path

from treefold.errors import CommandError
from treefold.files import check_writable


def check_output(option: str, path: Path) -> None:
    """Refuse a file that could not be written in the end, by the ``CommandError`` that names its option."""
    try:
        check_writable(path)
    except OSError as error:
        raise CommandError.unwritable(option, path, error) from None
