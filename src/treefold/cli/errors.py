"""What a command refuses before it starts, in one sentence each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from treefold.errors import TreefoldError
from treefold.errors.words import listed, short


class CommandError(TreefoldError, ValueError):
    """A command was called with something that it cannot do; ``treefold`` prints it and ends with exit code 2."""

    @classmethod
    def devices(cls, devices: int, batch_size: int) -> CommandError:
        """Refuse a number of devices that leaves a device without an example."""
        return cls(
            f"--devices got {devices}. It takes 1 to {batch_size}: each device needs at least one of the"
            f" {batch_size} examples of a batch."
        )

    @classmethod
    def not_positive(cls, option: str, got: int) -> CommandError:
        """Refuse a count below one."""
        return cls(f"{option} got {got}. It takes a number of at least 1.")

    @classmethod
    def seed(cls, got: int) -> CommandError:
        """Refuse a seed that NumPy does not take."""
        return cls(f"--seed got {got}. It takes 0 or a positive number.")

    @classmethod
    def epochs_and_steps(cls) -> CommandError:
        """Refuse two answers to one question."""
        return cls("--epochs and --steps both say how long to train; give one of them.")

    @classmethod
    def packs_without_packing(cls, ops: str) -> CommandError:
        """Refuse to drop an option that the chosen ops have no use for."""
        return cls(f"--num-packs means nothing to --ops {ops}, which reduces value by value; leave it out.")

    @classmethod
    def devices_range(cls, word: str) -> CommandError:
        """Refuse a word that names no device."""
        return cls(f"--devices got {short(word)}. It takes numbers, ranges and names: 0-3,6 or gpu:0,gpu:1.")

    @classmethod
    def picture(cls, option: str, path: Path, kinds: Sequence[str]) -> CommandError:
        """Refuse a picture of a kind that there is not."""
        return cls(f"{option} got {str(path)!r}. It draws {listed(kinds, quote=False)}; name the file so.")

    @classmethod
    def unwritable(cls, option: str, path: Path, reason: str) -> CommandError:
        """Refuse a file that could not be written in the end."""
        return cls(f"{option} cannot write {str(path)!r}: {reason}.")

    @classmethod
    def two_pipes(cls) -> CommandError:
        """Refuse two answers from one standard input."""
        return cls("--topology and --plan are both '-', and there is one standard input; save one of them to a file.")

    @classmethod
    def no_plan_file(cls, path: str, reason: str) -> CommandError:
        """Refuse a plan that cannot be read."""
        return cls(f"--plan cannot read {short(path)}: {reason}. Write plans with treefold plan --save.")

    @classmethod
    def packs_of_bytes(cls, packs: int, nbytes: int) -> CommandError:
        """Refuse packs that would be empty."""
        return cls(f"--packs got {packs} for {nbytes} bytes. Every pack needs a byte at least; ask for fewer.")

    @classmethod
    def report(cls, path: Path, reason: str) -> CommandError:
        """Refuse a file that could not be written in the end."""
        return cls(f"--report cannot write {str(path)!r}: {reason}.")
