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


class _Record(NamedTuple):
    """What a rank says of a step: in JSON, one line."""

    is_broken: bool
    words: int
    counts: list[int]
    used: list[bool]
    sums: dict[str, int]
    specials: dict[str, float]


class Step:
    """A step that has begun, and is not reduced yet."""

    def __init__(self, number: int, per_step: int) -> None:
        """Begin with nothing. ``per_step``: the number of its micro-batches, on all ranks together."""
        self.number = number
        self.values: dict[str, float] = {}
        self._counts = [0] * per_step
        self._words = self._passes = 0
        self._sums: dict[str, int] = {}  # of what was logged, times its weight, in units of 2**-1138
        self._specials: dict[str, float] = {}  # of infinities and NaN
        self._is_broken = False

    def open(self, number: int, index: int) -> None:
        """Begin a micro-batch.

        Raises:
            ArgumentError: it is of another step, does not exist, was added before, or one before it has failed.

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
        self._is_broken, self.values = True, {}

    def close(self, index: int, words: int, *, is_surplus: bool) -> None:
        """End a micro-batch after its gradients were added with the weight ``words``, in units of 2**-64."""
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
        """Join the records of all ranks; all of them call.

        Args:
            used: The parameters that this rank has used.
            group: The ranks; None: this process alone.

        Returns:
            The parameters that any rank has used, the sum of all weights in units of 2**-64, and the means of what was
            logged.

        Raises:
            ArgumentError: the step is not whole, or ranks have logged different names; on all ranks.

        """
        own = _Record(self._is_broken, self._words, self._counts, used, self._sums, self._specials)
        records = [own]
        if group is not None:
            lines = group.all_gather(np.frombuffer(json.dumps(own).encode() + b"\n", np.uint8))
            records = [_Record(*json.loads(line)) for line in np.asarray(lines).tobytes().splitlines()]
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
