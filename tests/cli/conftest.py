from collections.abc import Callable
from dataclasses import dataclass

import pytest

from treefold.cli import main


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


@pytest.fixture
def treefold(capsys) -> Callable[..., Outcome]:
    """Run the command line in this process, as the console script does."""

    def run(*arguments: object) -> Outcome:
        with pytest.raises(SystemExit) as stopped:
            main([str(argument) for argument in arguments])
        written = capsys.readouterr()
        return Outcome(stopped.value.code or 0, written.out, written.err)

    return run


@pytest.fixture(scope="session")
def digits():
    """Return the demo's data."""
    from treefold.cli.demo.data import load_split_digits  # noqa: PLC0415 - loaded once, by those who ask

    return load_split_digits()
