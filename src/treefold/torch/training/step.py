"""One step of a run on one rank: the micro-batches that were added, their weights, and the logged numbers."""

from __future__ import annotations

import json
import math
from typing import NamedTuple

import numpy as np

from treefold.errors import ArgumentError
from treefold.errors.words import short
from treefold.group import Group

#: Every finite float is a whole number of 2**-1074.
_UNITS = 1 << 1074


class _StepRecord(NamedTuple):
    """One rank's record of a step, which all ranks exchange as a line of JSON.

    Attributes:
        is_broken: Whether a micro-batch has failed.
        words: The sum of weights, in units of 2**-64.
        counts: For each micro-batch of the step, how often this rank has added it.
        used: For each trained parameter, whether it got a gradient.
        sums: The sum of each logged number times its weight, in units of 2**-1138.
        specials: The sum of the infinities and NaN of each logged number.

    """

    is_broken: bool
    words: int
    counts: list[int]
    used: list[bool]
    sums: dict[str, int]
    specials: dict[str, float]


class OpenStep:
    """A step that has begun, and is not reduced yet. ``values``: the numbers that the open micro-batch has logged."""

    def __init__(self, number: int, per_step: int) -> None:
        """Begin without micro-batches. ``per_step``: their number in the step, on all ranks together."""
        self.number = number
        self.values: dict[str, float] = {}
        self._counts = [0] * per_step
        self._words = self._passes = 0
        self._sums: dict[str, int] = {}  # of what was logged, times its weight, in units of 2**-1138
        self._specials: dict[str, float] = {}  # sums of infinities and NaN
        self._is_broken = False

    def open(self, number: int, index: int) -> None:
        """Begin a micro-batch.

        Raises:
            ArgumentError: The micro-batch is of another step, does not exist, or was added before; or one has failed.

        """
        if number != self.number:
            raise ArgumentError(
                f"micro_batch got step {short(number)}, and step {self.number} has begun. Call mine({short(number)}) "
                "first."
            )
        if type(index) is not int or not 0 <= index < len(self._counts):
            raise ArgumentError(
                f"micro_batch got index {short(index)}. It takes what mine() returns, from 0 to "
                f"{len(self._counts) - 1}."
            )
        if self._counts[index]:
            raise ArgumentError(
                f"Micro-batch {index} of step {number} was added before. Compute each one that mine() returns once."
            )
        if self._is_broken:
            raise ArgumentError(
                f"A micro-batch of step {number} has failed, so its sums are not known. Begin the step anew with "
                f"mine({number}), on all ranks."
            )
        # Until ``close``: an error in between leaves gradients of which some are added and some are not.
        self._is_broken, self.values = True, {}

    def close(self, index: int, words: int, *, is_surplus: bool) -> None:
        """End a micro-batch, after its gradients were added.

        Args:
            index: The number of the micro-batch.
            words: Its weight, in units of 2**-64; 0 if it is surplus.
            is_surplus: Whether it is another rank's micro-batch, which this rank only repeats.

        Raises:
            ArgumentError: It has logged other names than the micro-batches before it.

        """
        if self._passes and self.values.keys() != self._sums.keys():
            raise ArgumentError(
                f"Micro-batch {index} of step {self.number} has logged {short(sorted(self.values))}, and those before "
                f"it {short(sorted(self._sums))}. Log the same names in every micro-batch."
            )
        for name, value in self.values.items():
            is_finite = math.isfinite(value)
            numerator, denominator = value.as_integer_ratio() if is_finite else (0, 1)
            self._sums[name] = self._sums.get(name, 0) + numerator * (_UNITS // denominator) * words
            self._specials[name] = self._specials.get(name, 0.0) + (0.0 if is_finite or not words else value)
        self._passes += 1
        self._counts[index] += not is_surplus
        self._words += words
        self._is_broken = False

    def agree(self, used: list[bool], group: Group | None) -> tuple[list[bool], int, dict[str, float]]:
        """Exchange the records of all ranks, and combine them; all ranks call.

        Args:
            used: For each trained parameter, whether it got a gradient on this rank.
            group: The ranks; None: this process alone.

        Returns:
            For each trained parameter, whether it got a gradient on any rank; the sum of all weights, in units of
            2**-64; and the weighted mean of each logged number.

        Raises:
            ArgumentError: A micro-batch is missing or has failed, all weights are 0, or ranks have logged different
                names. All ranks raise it.

        """
        own = _StepRecord(self._is_broken, self._words, self._counts, used, self._sums, self._specials)
        records = [own]
        if group is not None:
            lines = group.all_gather(np.frombuffer(json.dumps(own).encode() + b"\n", np.uint8))
            records = [_StepRecord(*json.loads(line)) for line in np.asarray(lines).tobytes().splitlines()]
        counts = [sum(column) for column in zip(*[one.counts for one in records], strict=True)]
        for rank, one in enumerate(records):
            if one.is_broken:
                raise ArgumentError(
                    f"A micro-batch of step {self.number} has failed on rank {rank}. Begin the step anew with "
                    f"mine({self.number}), on all ranks."
                )
        for index, count in enumerate(counts):
            if count != 1:
                raise ArgumentError(
                    f"Micro-batch {index} of step {self.number} is missing. Compute every one that "
                    f"mine({self.number}) returns, on all ranks, before reduce()."
                )
        words = sum(one.words for one in records)
        if not words:
            raise ArgumentError(f"All micro-batches of step {self.number} have weight 0. Give one of them more.")
        for rank, one in enumerate(records):
            if one.sums.keys() != records[0].sums.keys():
                raise ArgumentError(
                    f"Rank {rank} has logged {short(sorted(one.sums))} in step {self.number}, and rank 0 "
                    f"{short(sorted(records[0].sums))}. Log the same names in every micro-batch."
                )
        means = {
            name: sum(one.specials[name] for one in records) + sum(one.sums[name] for one in records) / (words * _UNITS)
            for name in records[0].sums
        }
        return [any(column) for column in zip(*[one.used for one in records], strict=True)], words, means
