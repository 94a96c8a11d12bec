"""The ``treefold`` command.

``main`` is the entry point. The commands are imported inside it, so that a missing extra is reported in one sentence
and not by a traceback.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import typer

from treefold.cli.console import refuse
from treefold.cli.needs import is_of_an_extra, needing
from treefold.cli.signals import unwound_by_signals
from treefold.errors import CommandError, TreefoldError

_FAILED = 2
_UNREAD = 128 + 13  # the number of SIGPIPE, which Windows does not have
#: Typer's own copy of click has it, and so has the click that older ones import: the class above ``BadParameter``.
_UsageError: type[typer.BadParameter] = typer.BadParameter.__mro__[1]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; ``arguments`` are ``sys.argv[1:]`` unless given.

    Raises:
        SystemExit: always. Its code is 0 if the command did what was asked, 1 if a command's own checks failed, 2 if
            the command was refused, with one sentence on stderr, and 128 + the number of a signal: of SIGPIPE, too.

    """
    _open_streams()
    # A file's name may be bytes that are no text; stderr escapes them, too.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = _run(arguments)
    except _UsageError as error:
        refuse(_sentence(error))
    except TreefoldError as error:
        refuse(str(error))
    except OSError as error:
        refuse(str(CommandError.system(error)))
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if not is_of_an_extra(module):
            raise
        refuse(str(needing([module])))
    else:
        sys.exit(code)
    sys.exit(_FAILED)


def _open_streams() -> None:
    """Open streams that the shell has closed (``>&-``) on the null device, or files of ours would get their numbers."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115 - for as long as the process lives


def _run(arguments: Sequence[str] | None) -> int | None:
    """Run a command and return its exit code; if the reader of its output has gone, that of SIGPIPE."""
    from treefold.cli.app import make_app  # noqa: PLC0415 - a package that is missing is refused by the caller

    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        with unwound_by_signals():
            app = make_app(given[0] if given else None)
            code: int | None = app(given, prog_name="treefold", standalone_mode=False)
        sys.stdout.flush()
    except (BrokenPipeError, SystemExit) as ended:
        if not isinstance(ended, BrokenPipeError) and not isinstance(ended.__context__, BrokenPipeError):
            raise  # Click and Rich turn a broken pipe into code 1
        sys.stdout = io.StringIO()  # Python flushes it once more at the end
        return _UNREAD
    return code


def _sentence(error: typer.BadParameter) -> str:
    """Return what was wrong with a call, in one line, and the command that shows the right usage."""
    message = error.format_message().replace("Value error, ", "")  # pydantic's words before those of Typer
    help_ = f"{error.ctx.command_path if error.ctx else 'treefold'} --help"
    words = " ".join(message.split())
    return f"{words}{'' if words.endswith(('.', '?')) else '.'} See {help_}."
