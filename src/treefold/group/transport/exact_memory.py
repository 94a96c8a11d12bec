"""The memory of a call in which hosts send exact partial sums: messages, what follows them, and the folds at both ends.

A message has the same size whatever the numbers are (``fold.exact_bytes``). If it does not hold the exact sums of some
blocks, then for each replica of the host follows what it has in these. The receiver learns from the message how long
that is. Both are made, received and forgotten chunk by chunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from treefold.backends import HostArray
from treefold.backends.numpy_partial import FRACTION, Factor
from treefold.dtypes import numpy_dtype
from treefold.execution.actions import FlatMemory, LeafActions
from treefold.fold import exact_bytes
from treefold.partials.partial_messages import Message, Weighted, elements_left, fold_messages, message_of
from treefold.plan.ir import Action, Combine, Range, Role
from treefold.reduce_op import ReduceOp


@dataclass(frozen=True)
class ExactMemory(FlatMemory):
    """The memory of a call.

    Attributes:
        replicas: The replicas in each buffer, by their numbers.

    """

    replicas: Sequence[tuple[int, ...]]
    #: For chunks of exact partial sums, by buffer and first element: the messages, and the arrays that follow them.
    _messages: dict[tuple[int, int], HostArray] = field(default_factory=dict)
    _rests: dict[tuple[int, int], list[HostArray]] = field(default_factory=dict)

    def part(self, where: Range) -> HostArray:
        """Return a view of a range; of a chunk of exact partial sums its message, which may be yet to come."""
        if not self._is_exact(where):
            view: HostArray = super().part(where)
            return view
        key = where.buffer, where.start
        if key not in self._messages:
            self._messages[key] = np.empty(exact_bytes(self._leaf(where).leaf.dtype, where.length), np.uint8)
        return self._messages[key]

    def rest(self, where: Range) -> Sequence[HostArray]:
        """Return what follows the message of a range, as bytes: of each replica what the message does not hold."""
        if not self._is_exact(where):
            return ()
        key = where.buffer, where.start
        if key not in self._rests:
            count, dtype = elements_left(where.length, self._messages[key]).size, self._leaf(where).leaf.dtype
            self._rests[key] = [np.empty(count, numpy_dtype(dtype)) for _ in self.replicas[where.buffer] if count]
        return [rest.view(np.uint8) for rest in self._rests[key]]

    def perform(self, action: Action) -> None:
        """Perform an action."""
        if isinstance(action, Combine) and self._is_exact(action.target):
            self._add(action)
        elif isinstance(action, Combine) and any(map(self._is_exact, action.sources)):
            self._finish(action)
        else:
            super().perform(action)

    def _add(self, action: Combine) -> None:
        """Make the message with the sums of contributions, and keep what must follow it."""
        target, rows = action.target, [self.part(source) for source in action.sources]
        own = self._weighted(target, rows, self.replicas[target.buffer])
        key = target.buffer, target.start
        self._messages[key] = message_of(self._leaf(target).leaf.dtype, own, target.length)
        elements = elements_left(target.length, self._messages[key])
        is_whole = elements.size == target.length
        self._rests[key] = [row if is_whole else row[elements] for row in rows if elements.size]

    def _finish(self, action: Combine) -> None:
        """Round the sum of contributions and of what has come in messages, and forget these."""
        target, leaf = action.target, self._leaf(action.target)
        near = [source for source in action.sources if not self._is_exact(source)]
        replicas = [replica for source in near for replica in self.replicas[source.buffer]]
        messages = []
        for source in action.sources:
            if self._is_exact(source):
                key = source.buffer, source.start
                rests = self._weighted(source, self._rests.pop(key), self.replicas[source.buffer])
                messages.append(Message(self._messages.pop(key), rests))
        fold = leaf.fold
        if fold is None:
            raise AssertionError(action)
        divisor = fold.divisor or (leaf.num_contributions if fold.op is ReduceOp.MEAN else 1)
        own = self._weighted(target, [self.part(source) for source in near], replicas)
        fold_messages(leaf.leaf.dtype, own, messages, divisor, self.part(target))

    def _weighted(self, where: Range, rows: Sequence[HostArray], replicas: Sequence[int]) -> Weighted:
        """Return the rows of replicas with their weights; rows of weight 0 are left out."""
        fold = self._leaf(where).fold
        weights = fold and fold.weights
        pairs = [(row, weights[replica] if weights else 1) for row, replica in zip(rows, replicas, strict=bool(rows))]
        pairs = [(row, weight) for row, weight in pairs if weight]
        return Weighted([row for row, _ in pairs], [Factor(weight << FRACTION) for _, weight in pairs])

    def _leaf(self, where: Range) -> LeafActions:
        return self.leaves[self.buffers[where.buffer].leaf]

    def _is_exact(self, where: Range) -> bool:
        return self.buffers[where.buffer].role is Role.EXACT
