"""``treefold bench --hosts``: runs the benchmark of emulated hosts, which stands in the repository only."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import typer

import treefold
from treefold.errors import BenchError
from treefold.errors.words import short

_PROGRAM = Path("benchmarks", "hosts.py")
#: What it stands on.
_LAB = Path("tools", "lab")


def bench_hosts(options: Sequence[str], *, is_asked_for: bool) -> None:
    """Run ``benchmarks/hosts.py`` with these options of its own, and end with its exit code.

    Raises:
        BenchError: there is no clone, neither above this package nor in the current folder; or options without --hosts.

    """
    if not is_asked_for:
        raise BenchError(
            f"treefold bench got {short(options[0])}. Only --hosts takes words behind --; options begin with -."
        )
    above = Path(treefold.__file__).parents[2]
    clone = next((one for one in (above, Path.cwd()) if (one / _PROGRAM).is_file() and (one / _LAB).is_dir()), None)
    if clone is None:
        raise BenchError(
            f"--hosts runs {_PROGRAM!s}, which is in treefold's repository and not in the package. Run it in a clone, "
            "as root on Linux."
        )
    command = [sys.executable, str(clone / _PROGRAM), *options]
    raise typer.Exit(subprocess.run(command, check=False).returncode)  # noqa: S603 - our own program
