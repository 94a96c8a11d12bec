"""A plan in words: a head that says what runs and what it promises, then one line per step."""

from __future__ import annotations

from collections import Counter

from treefold.dtypes import itemsize
from treefold.plan.ir import Action, Buffer, Combine, Copy, Goal, Plan, Role, Step, runs_in_one_pass

_GUARANTEES = {
    "replica_order": "every element is folded once, in replica order: the same bits whatever the packing or plan",
    "per_plan": "the same bits on every destination and on every run of this plan",
    "callback": "what accumulation_fn returns, copied to every destination",
}
_VERBS = {
    Goal.FOLD: "fold {}",
    Goal.ROWS: "lay {} behind each other",
    Goal.GATHER: "lay {} behind each other",
    Goal.COPY: "copy {}",
}
_SHOWN = 6  # of one kind in a line; the rest is counted


def describe(plan: Plan) -> str:
    """Return the plan as text that can be pasted into an issue."""
    lines = [
        _headline(plan),
        f"executor:  {_executor(plan)}",
        f"guarantee: {plan.guarantee} - {_guarantee(plan)}",
    ]
    lines += [f"note:      {note}" for note in plan.notes]
    if runs_in_one_pass(plan):
        lines += [f"one pass:  {part}" for part in _one_pass(plan)]
    else:
        lines += [f"step {number}: {_step(plan, step)}" for number, step in enumerate(plan.steps, start=1)]
    return "\n".join(lines)


def _one_pass(plan: Plan) -> list[str]:
    """Return what one pass does, a line for arrays that are treated alike."""
    sizes: dict[int, list[Buffer]] = {index: [] for index in range(len(plan.leaves))}
    for buffer in plan.buffers:
        sizes[buffer.leaf].append(buffer)
    alike: dict[tuple[str, int, int], list[int]] = {}
    for index, buffers in sizes.items():
        leaf = plan.leaves[index]
        replicas = sum(buffer.role is Role.INPUT for buffer in buffers)
        key = (_VERBS[leaf.goal], replicas, len(buffers) - replicas)
        alike.setdefault(key, []).append(buffers[-1].length * itemsize(leaf.dtype))
    return [
        f"{verb.format(_count(replicas, 'replica'))} into {_count(results, 'result')},"
        f" {_count(len(nbytes), 'array')} ({_bytes(sum(nbytes))}) each"
        for (verb, replicas, results), nbytes in alike.items()
    ]


def _guarantee(plan: Plan) -> str:
    if plan.executor == "nccl" and plan.guarantee == "per_plan":
        return "the same bits on every destination; on every run, if NCCL chooses the same way"
    return _GUARANTEES[plan.guarantee]


def _headline(plan: Plan) -> str:
    replicas = sum(buffer.role is Role.INPUT and buffer.leaf == 0 for buffer in plan.buffers)
    amounts = f"{_count(len(plan.leaves), 'array')} per replica, {_count(replicas, 'replica')}"
    packs = "" if runs_in_one_pass(plan) else f" {_count(plan.num_packs, 'pack')},"
    return f"{plan.collective} by {plan.algorithm}: {amounts},{packs} on {_shortened(plan.devices)}"


def _executor(plan: Plan) -> str:
    if runs_in_one_pass(plan):
        name = f"{plan.executor} ({plan.kernel} kernel)" if plan.kernel else plan.executor
        is_fold = any(leaf.goal is Goal.FOLD for leaf in plan.leaves)
        return f"{name}, one pass in replica order" if is_fold else f"{plan.executor}, one pass"
    if plan.executor == "nccl":
        return "nccl, in place of the copies and combinations of a pack, wherever it does the same"
    if plan.executor == "cuda":
        return "cuda, chunks of all steps in flight together"
    return f"{plan.executor}, step by step"


def _step(plan: Plan, step: Step) -> str:
    parts = []
    for kind, verb in ((Copy, "copy"), (Combine, "combine"), (type(None), "concat")):
        actions = [a for a in step.actions if _kind(a) is kind]
        if not actions:
            continue
        places = Counter(_place(plan, action) for action in actions)
        shown = [f"{place} ×{count}" if count > 1 else place for place, count in places.items()]
        parts.append(f"{verb} {_shortened(shown)} ({_bytes(sum(_nbytes(plan, a) for a in actions))})")
    return "; ".join(parts)


def _kind(action: Action) -> type:
    return type(action) if isinstance(action, Copy | Combine) else type(None)


def _place(plan: Plan, action: Action) -> str:
    target = plan.buffers[action.target.buffer]
    if not isinstance(action, Copy):
        return f"{_count(len(action.sources), 'part')} on {target.device}"
    source = plan.buffers[action.source.buffer]
    if source.device != target.device:
        return f"{source.device}→{target.device}"
    return f"within {target.device}"


def _nbytes(plan: Plan, action: Action) -> int:
    buffer: Buffer = plan.buffers[action.target.buffer]
    return action.target.length * itemsize(plan.leaves[buffer.leaf].dtype)


def _shortened(items: tuple[str, ...] | list[str]) -> str:
    if len(items) <= _SHOWN + 2:
        return ", ".join(items)
    return f"{', '.join(items[:_SHOWN])} … and {len(items) - _SHOWN} more"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _bytes(nbytes: int) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if nbytes >= size:
            return f"{nbytes / size:.1f} {unit}"
    return f"{nbytes} B"
