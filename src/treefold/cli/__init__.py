"""The ``treefold`` command.

``main`` is the entry point. It imports the commands itself, so that a missing extra is one sentence and not a
traceback.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence

from treefold.cli.signals import unwound_by_signals
from treefold.errors import TreefoldError

_EXTRA_OF_MODULE = {
    "sklearn": "demo",
    "threadpoolctl": "demo",
    "ml_dtypes": "files",
    "safetensors": "files",
    "torch": "torch",
}
_FAILED = 2


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; ``arguments`` are ``sys.argv[1:]`` unless given.

    Raises:
        SystemExit: always. Its code is 0 if the command did what was asked, 1 if a command's own checks failed, 2 if
            the command was refused, with one sentence on stderr, and 128 + the number of a SIGTERM or SIGHUP.

    """
    if isinstance(
        sys.stdout, io.TextIOWrapper
    ):  # a file's name may be bytes that are no text; stderr escapes them, too
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        from treefold.cli.app import app  # noqa: PLC0415 - a package that is missing is refused below

        with unwound_by_signals():
            app(args=None if arguments is None else list(arguments), prog_name="treefold")
    except TreefoldError as error:
        _refuse(str(error))
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        extra = _EXTRA_OF_MODULE.get(module)
        if extra is None:
            raise
        _refuse(f"This command needs the module {module}, which is not installed; run: pip install 'treefold[{extra}]'")


def _refuse(sentence: str) -> None:
    print(f"treefold: {sentence}", file=sys.stderr)
    sys.exit(_FAILED)
