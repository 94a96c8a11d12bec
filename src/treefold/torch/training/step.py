"""One step of a run on one rank: the micro-batches that were added, their weights, and the logged numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from treefold.backends import HostArray
from treefold.errors import ArgumentError
from treefold.errors.words import short
from treefold.group import Group
from treefold.partials import Mean

_WEIGHT_BYTES = 64


class Step:
    """A step that has begun, and is not reduced yet."""

    def __init__(self, number: int, per_step: int) -> None:
        """Begin with nothing. ``per_step``: the number of its micro-batches, on all ranks together."""
        self.number = number
        self.values: dict[str, float] = {}
        self._counts = np.zeros(per_step, np.uint8)
        self._words = 0
        self._log = Mean()
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

    def close(self, index: int, *, words: int, weight: Any, is_surplus: bool) -> None:
        """End a micro-batch after its gradients were added with ``weight``; ``words`` is that in units of 2**-64."""
        if self.values:
            self._log.add(self.values, weight=weight)
        self._counts[index] += not is_surplus
        self._words += words
        self._is_broken = False

    def agree(self, used: list[bool], group: Group | None) -> tuple[HostArray, int, dict[str, float]]:
        """Join the records of all ranks; all of them call.

        Args:
            used: The parameters that this rank has used.
            group: The ranks; None: this process alone.

        Returns:
            The parameters that any rank has used, the sum of all weights in units of 2**-64, and the means of what was
            logged.

        Raises:
            ArgumentError: the step is not whole, on all ranks.

        """
        weight = np.frombuffer(self._words.to_bytes(_WEIGHT_BYTES, "little"), np.uint8)
        said = np.asarray([self._is_broken, bool(self._log.count), *used], np.uint8)
        row = np.concatenate([weight, self._counts, said])[None]
        rows = row if group is None else np.asarray(group.all_gather(row))
        weights, counts, flags = np.split(rows, [_WEIGHT_BYTES, _WEIGHT_BYTES + len(self._counts)], axis=1)
        broken, missing = np.flatnonzero(flags[:, 0]), np.flatnonzero(counts.sum(0) != 1)
        if broken.size:
            raise ArgumentError(
                f"A micro-batch of step {self.number} has failed on rank {broken[0]}. Begin the step anew with "
                f"mine({self.number}), on all ranks."
            )
        if missing.size:
            raise ArgumentError(
                f"Micro-batch {missing[0]} of step {self.number} is missing. Compute every one that "
                f"mine({self.number}) returns, on all ranks, before reduce()."
            )
        words = sum(int.from_bytes(one.tobytes(), "little") for one in weights)
        if not words:
            raise ArgumentError(f"All micro-batches of step {self.number} have weight 0. Give one of them more.")
        logged: dict[str, float] = self._log.result(group=group) if flags[:, 1].any() else {}
        return np.asarray(flags[:, 2:].any(0)), words, logged
