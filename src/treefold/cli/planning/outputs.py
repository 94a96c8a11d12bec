"""Files that the planning commands write: refused before the work if they cannot be, written whole or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import typer

from treefold.cli.extras import has_module, needing
from treefold.cli.outputs import check_output
from treefold.errors import CommandError, MissingExtraError
from treefold.errors.words import listed
from treefold.files import write_atomically
from treefold.topology.drawing.png import render_png

PICTURES = (".html", ".svg", ".png")
_PICTURE_OPTIONS = ("--draw", "--plot")


def check_outputs(paths: Mapping[str, Path | None], *, plans: bool) -> None:
    """Refuse files that could not be written in the end, and pictures of a kind that there is not.

    ``plans``: the command also needs the planner, which is named beside what a picture lacks.

    Raises:
        CommandError: naming the option, or all packages that are missing.
        MissingExtraError: a PNG without its renderer.

    """
    for option, path in paths.items():
        if path is None:
            continue
        if option in _PICTURE_OPTIONS:
            if path.suffix.lower() not in PICTURES:
                raise CommandError(
                    f"{option} got {str(path)!r}. It draws {listed(PICTURES, quote=False)}; name the file so."
                )
            if path.suffix.lower() == ".png" and not has_module("resvg_py"):
                if plans and not has_module("scipy"):
                    raise needing(["scipy", "resvg_py"])
                raise MissingExtraError.png()
        check_output(option, path)


def say_written(*paths: Path | None, err: bool) -> None:
    """Print which files there are now; on stderr where stdout is JSON. They were written before all that is printed."""
    for path in paths:
        if path is not None:
            typer.echo(f"Written: {path}", err=err)


def write_picture(path: Path, *, svg: str, html: str) -> None:
    """Write a drawing in the format that the file's name asks for."""
    kind = path.suffix.lower()
    if kind == ".png":
        write_atomically(path, render_png(svg))
    else:
        write_atomically(path, html if kind == ".html" else svg)
