"""Errors of commands before they start."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from treefold.errors.base import TreefoldError
from treefold.errors.words import counted, listed, reason_of, short


class CommandError(TreefoldError, ValueError):
    """A command was called with something that it cannot do; ``treefold`` prints it and ends with exit code 2."""

    @classmethod
    def devices(cls, devices: int, most: int) -> Self:
        return cls(
            f"--devices got {devices}. It takes 2 to {most}: each device holds at least one of the {most} digits."
        )

    @classmethod
    def no_script(cls, script: str) -> Self:
        """Refuse to run what is no file."""
        return cls(f"There is no file {short(script)}. Name a script, or a module behind -m.")

    @classmethod
    def not_positive(cls, option: str, got: int) -> Self:
        return cls(f"{option} got {got}. It takes a number of at least 1.")

    @classmethod
    def seed(cls, got: int) -> Self:
        return cls(f"--seed got {got}. It takes 0 or a positive number.")

    @classmethod
    def epochs_and_steps(cls) -> Self:
        return cls("--epochs and --steps both say how long to train; give one of them.")

    @classmethod
    def connect_and_ranks(cls) -> Self:
        return cls("--ranks starts processes and --connect joins those of a launcher; give one of them.")

    @classmethod
    def not_between_processes(cls, option: str, mode: str) -> Self:
        return cls(f"{option} is for devices of one process and means nothing to {mode}; leave it out.")

    @classmethod
    def demo_ranks(cls, ranks: int, most: int) -> Self:
        return cls(
            f"--connect found {counted(ranks, 'process', 'processes')}. The demo takes 2 to {most}: each holds at least"
            f" one of the {most} digits."
        )

    @classmethod
    def packs_without_packing(cls, ops: str) -> Self:
        return cls(f"--num-packs means nothing to --ops {ops}, which reduces value by value; leave it out.")

    @classmethod
    def devices_range(cls, word: str) -> Self:
        return cls(f"--devices got {short(word)}. It takes numbers, ranges and names: 0-3,6 or gpu:0,gpu:1.")

    @classmethod
    def picture(cls, option: str, path: Path, kinds: Sequence[str]) -> Self:
        return cls(f"{option} got {str(path)!r}. It draws {listed(kinds, quote=False)}; name the file so.")

    @classmethod
    def unwritable(cls, option: str, path: Path, error: OSError) -> Self:
        return cls(f"{option} cannot write {str(path)!r}: {reason_of(error)}.")

    @classmethod
    def two_pipes(cls) -> Self:
        return cls("The machine and --plan are both '-', and there is one standard input; save one of them to a file.")

    @classmethod
    def machines(cls, given: Sequence[str]) -> Self:
        """Refuse several answers to which machine is meant."""
        return cls(f"{' and '.join(map(short, given))} are each a machine; give one of them.")

    @classmethod
    def no_plan_file(cls, path: str, error: OSError | UnicodeDecodeError) -> Self:
        reason = reason_of(error) if isinstance(error, OSError) else "it is no text"
        return cls(f"--plan cannot read {short(path)}: {reason}. Write plans with treefold plan --save.")

    @classmethod
    def packs_of_bytes(cls, packs: int, nbytes: int) -> Self:
        return cls(
            f"--packs got {packs} for {counted(nbytes, 'byte')}. Every pack needs a byte at least; ask for fewer."
        )

    @classmethod
    def system(cls, error: OSError) -> Self:
        """End a command to which the system refuses something that could not be seen before: a full disk, for one."""
        if error.errno == errno.EMFILE:
            return cls(
                "The system lets this process open too few files (too many open files). Raise the limit, for example "
                "with ulimit -n 4096; treefold run needs about two files for every rank."
            )
        if error.errno == errno.EAGAIN:
            return cls(
                f"The system starts no more processes ({reason_of(error)}). Raise the limit of this user (ulimit -u) "
                "or of the container, or start fewer ranks."
            )
        what = "The output" if error.filename is None else short(str(error.filename))
        return cls(f"{what} cannot be used any further: {reason_of(error)}.")

    @classmethod
    def missing_packages(cls, packages: Sequence[str], extras: Sequence[str]) -> Self:
        """Refuse a command whose packages are not all installed; all of its extras are named at once."""
        *others, last = packages
        needed = f"{', '.join(others)} and {last}, which are" if others else f"{last}, which is"
        return cls(f'This command needs {needed} not installed. Run pip install "treefold[{",".join(extras)}]".')
