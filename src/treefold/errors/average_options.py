"""Errors of the options of an average of checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from treefold.errors.checkpoints import CheckpointError
from treefold.errors.words import counted, short


class AverageOptionError(CheckpointError):
    """Options of an average that say nothing, too much, or what does not go together."""

    @classmethod
    def weights_text(cls, text: str) -> Self:
        return cls(
            f"--weights got {short(text)}. It takes one number per file, with commas between: 1,2,0.5 or 1/3,2/3."
        )

    @classmethod
    def weights_of_mean(cls) -> Self:
        return cls("--weights of a mean are numbers ≥ 0, not all 0. --op combine takes numbers of any sign.")

    @classmethod
    def weights_file(cls, path: Path, reason: str) -> Self:
        return cls(f"--weights cannot read {str(path)!r}: {reason}. It takes a text file of one number per input.")

    @classmethod
    def weight_count(cls, num_weights: int, num_inputs: int) -> Self:
        return cls(
            f"--weights has {counted(num_weights, 'number')} for {counted(num_inputs, 'file')}. Give one for each file."
        )

    @classmethod
    def both(cls, one: str, other: str) -> Self:
        return cls(f"{one} and {other} say the same thing in two ways; give one of them.")

    @classmethod
    def goes_with(cls, option: str, needed: str) -> Self:
        return cls(f"{option} goes with {needed}.")

    @classmethod
    def value(cls, option: str, got: object, allowed: str) -> Self:
        return cls(f"{option} got {short(got)}. It takes {allowed}.")

    @classmethod
    def nothing_left(cls, options: str) -> Self:
        return cls(f"{options} leaves no tensor to average. Nothing was written.")

    @classmethod
    def output_exists(cls, path: Path) -> Self:
        return cls(f"--output {str(path)!r} is a folder that is not empty. Name a new one, or remove it.")

    @classmethod
    def output_in_input(cls, path: Path, other: Path) -> Self:
        return cls(f"--output {str(path)!r} and the input {str(other)!r} lie in each other. Name another output.")

    @classmethod
    def busy(cls, path: Path) -> Self:
        return cls(f"Another run is writing to --output {str(path)!r}. Wait for it, or name another output.")

    @classmethod
    def no_match(cls, pattern: str) -> Self:
        return cls(f"No file or folder matches {short(pattern)}. Nothing was written.")
