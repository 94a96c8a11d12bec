"""What a command refuses before it starts, in one sentence each."""

from __future__ import annotations

from pathlib import Path

from treefold.errors import TreefoldError


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
    def report(cls, path: Path, reason: str) -> CommandError:
        """Refuse a file that could not be written in the end."""
        return cls(f"--report cannot write {str(path)!r}: {reason}.")
