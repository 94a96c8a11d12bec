"""Facts about actions and buffers that follow from the movement alone, for schedulers, executors and the cost model.

This module knows no array and no framework; ``execution/actions.py`` performs actions on arrays.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from treefold.fold import Fold
from treefold.plan.ir import Action, Combine, Copy, Goal, Leaf, Range, Role
from treefold.plan.movement import Movement

_DONE = frozenset({Role.OUTPUT, Role.RESULT})
_FOLDED = frozenset({Goal.FOLD, Goal.ROWS})


def fills(action: Action) -> Iterator[tuple[Range, Range]]:
    """Yield each range that an action reads, with the part of the target that it is written or folded into.

    The sources of a concatenation fill its target one after the other; any other source fills all of it.
    """
    start = action.target.start
    for source in action.sources:
        yield source, Range(action.target.buffer, start, start + source.length)
        if not isinstance(action, Combine):
            start += source.length


def cut(action: Action, start: int, stop: int) -> Action:
    """Return the part of an action that writes elements ``start`` to ``stop``, counted from the start of its target.

    >>> from treefold.plan.ir import Concat
    >>> whole = Concat((Range(0, 0, 4), Range(1, 0, 4)), Range(2, 10, 18), pack=0)
    >>> cut(whole, 3, 6).sources
    (Range(buffer=0, start=3, stop=4), Range(buffer=1, start=0, stop=2))
    """
    target = Range(action.target.buffer, action.target.start + start, action.target.start + stop)
    sources = []
    for source, filled in fills(action):
        first, last = max(target.start, filled.start), min(target.stop, filled.stop)
        if first < last:
            sources.append(
                Range(source.buffer, source.start + first - filled.start, source.start + last - filled.start)
            )
    if isinstance(action, Copy):
        return replace(action, source=sources[0], target=target)
    return replace(action, sources=tuple(sources), target=target)


def buffers_of_leaves(movement: Movement, role: Role) -> list[list[int]]:
    """Return, for each leaf, the indices of its buffers of a role: inputs by replica, outputs by component.

    The list of a leaf has one entry per contribution or destination, even if this process holds only some of them.
    """
    found: list[list[int]] = [[] for _ in movement.leaves]
    for index, buffer in enumerate(movement.buffers):
        if buffer.role is role:
            found[buffer.leaf].append(index)
    return found


def replicas_held(movement: Movement) -> list[tuple[int, ...]]:
    """Return whose contributions each buffer before the last folds holds, in the order in which they were added."""
    held: list[tuple[int, ...]] = [
        (buffer.position,) if buffer.role is Role.INPUT else () for buffer in movement.buffers
    ]
    for step in movement.steps:
        for action in step.actions:
            sources = action.sources if isinstance(action, Combine) else action.sources[:1]
            held[action.target.buffer] = tuple(replica for source in sources for replica in held[source.buffer])
    return held


def dtype_in(role: Role, leaf: Leaf, fold: Fold | None, *, result: str | None = None) -> str:
    """Return the dtype of a leaf's elements in a buffer of a role.

    Args:
        role: The buffer's role.
        leaf: The leaf.
        fold: The arithmetic; None for plans that only move values.
        result: The dtype of results, if a framework's differs from the fold's; None for the fold's.

    """
    if fold is None:
        return leaf.dtype
    if role is Role.PARTIAL:
        return fold.partial_dtype(leaf.dtype)
    if role in _DONE and leaf.goal in _FOLDED:
        return result or fold.result_dtype(leaf.dtype)
    return leaf.dtype
