"""A movement in words: one line per step, or what a single pass over one memory does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from treefold.dtypes import itemsize
from treefold.errors.words import bytes_in_words, counted
from treefold.plan.ir import Action, Buffer, Combine, Concat, Copy, Goal, Role, Step
from treefold.plan.movement import Movement

_VERBS = {
    Goal.FOLD: "fold {}",
    Goal.ROWS: "lay {} behind each other",
    Goal.GATHER: "lay {} behind each other",
    Goal.COPY: "copy {}",
}
_SHOWN = 6  # of one kind in a line; the rest is counted


def describe_amounts(movement: Movement) -> str:
    """Return how many arrays and replicas a movement has."""
    replicas = sum(buffer.role is Role.INPUT and buffer.leaf == 0 for buffer in movement.buffers)
    return f"{counted(len(movement.leaves), 'array')} per replica, {counted(replicas, 'replica')}"


def describe_steps(movement: Movement) -> list[str]:
    """Return a line for every step."""
    return [f"step {number}: {_step(movement, step)}" for number, step in enumerate(movement.steps, start=1)]


def describe_one_pass(movement: Movement) -> list[str]:
    """Return what one pass does, a line for arrays that are treated alike."""
    sizes: dict[int, list[Buffer]] = {index: [] for index in range(len(movement.leaves))}
    for buffer in movement.buffers:
        sizes[buffer.leaf].append(buffer)
    alike: dict[tuple[str, int, int], list[int]] = {}
    for index, buffers in sizes.items():
        leaf = movement.leaves[index]
        replicas = sum(buffer.role is Role.INPUT for buffer in buffers)
        key = (_VERBS[leaf.goal], replicas, len(buffers) - replicas)
        alike.setdefault(key, []).append(buffers[-1].length * itemsize(leaf.dtype))
    return [
        f"one pass:  {verb.format(counted(replicas, 'replica'))} into {counted(results, 'result')},"
        f" {counted(len(nbytes), 'array')} ({bytes_in_words(sum(nbytes))}) each"
        for (verb, replicas, results), nbytes in alike.items()
    ]


def _step(movement: Movement, step: Step) -> str:
    parts = []
    for kind, verb in ((Copy, "copy"), (Combine, "combine"), (Concat, "concat")):
        actions = [action for action in step.actions if isinstance(action, kind)]
        if actions:
            devices = Counter(_devices(movement, action) for action in actions)
            listed = [f"{words} ×{times}" if times > 1 else words for words, times in devices.items()]
            nbytes = sum(_nbytes(movement, action) for action in actions)
            parts.append(f"{verb} {shortened(listed)} ({bytes_in_words(nbytes)})")
    return "; ".join(parts)


def _devices(movement: Movement, action: Action) -> str:
    target = movement.buffers[action.target.buffer]
    if not isinstance(action, Copy):
        return f"{counted(len(action.sources), 'part')} on {target.device}"
    source = movement.buffers[action.source.buffer]
    return f"within {target.device}" if source.device == target.device else f"{source.device}→{target.device}"


def _nbytes(movement: Movement, action: Action) -> int:
    buffer = movement.buffers[action.target.buffer]
    return action.target.length * itemsize(movement.leaves[buffer.leaf].dtype)


def shortened(items: Sequence[str]) -> str:
    """Return items separated by commas; of more than eight the first six, and how many more there are."""
    if len(items) <= _SHOWN + 2:
        return ", ".join(items)
    return f"{', '.join(items[:_SHOWN])} … and {len(items) - _SHOWN} more"
