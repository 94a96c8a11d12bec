import contextlib
import os
import subprocess
import sys
from collections.abc import Callable

import pytest


@pytest.fixture(scope="session")
def digits():
    from treefold.cli.training import load_split_digits  # noqa: PLC0415 - loaded once, by those who ask

    return load_split_digits()


@pytest.fixture
def in_terminal() -> Callable[..., str]:
    """Run the command line in a terminal of this many columns, and return everything that the terminal gets."""
    import pty  # noqa: PLC0415 - Windows has none

    def run(*arguments: str, columns: int = 100, **environment: str) -> str:
        ours, theirs = pty.openpty()
        command = [sys.executable, "-m", "treefold.cli", *arguments]
        plain = {name: value for name, value in os.environ.items() if name not in {"NO_COLOR", "FORCE_COLOR"}}
        process = subprocess.Popen(  # noqa: S603 - our own command
            command,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=plain | {"TERM": "xterm", "COLUMNS": str(columns)} | environment,
        )
        os.close(theirs)
        sent = b""
        with contextlib.suppress(OSError):  # what Linux says at the end
            while part := os.read(ours, 1 << 16):
                sent += part
        os.close(ours)
        process.wait()
        return sent.decode().replace("\r\n", "\n")

    return run
