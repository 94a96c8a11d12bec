"""Files that the planning commands write: refused before the work if they cannot be, written whole or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import typer

from treefold.cli.outputs import check_output
from treefold.errors import CommandError
from treefold.errors.words import listed
from treefold.files import write_atomically

PICTURES = (".html", ".svg")
_PICTURE_OPTIONS = ("--draw", "--plot")


def check_outputs(paths: Mapping[str, Path | None]) -> None:
    """Refuse files that could not be written in the end, and pictures of a kind that there is not.

    Raises:
        CommandError: naming the option.

    """
    for option, path in paths.items():
        if path is None:
            continue
        if option in _PICTURE_OPTIONS and path.suffix.lower() not in PICTURES:
            raise CommandError(
                f"{option} got {str(path)!r}. It draws {listed(PICTURES, quote=False)}; name the file so."
            )
        check_output(option, path)


def say_written(*paths: Path | None, err: bool) -> None:
    """Print which files there are now; on stderr where stdout is JSON. They were written before all that is printed."""
    for path in paths:
        if path is not None:
            typer.echo(f"Written: {path}", err=err)


def write_picture(path: Path, *, svg: str, html: str) -> None:
    """Write a drawing in the format that the file's name asks for."""
    write_atomically(path, html if path.suffix.lower() == ".html" else svg)
