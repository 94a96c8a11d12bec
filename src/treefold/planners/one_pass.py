"""One pass: on one memory no tree is needed, and each element is folded once, from all contributions."""

from __future__ import annotations

from treefold.plan.ir import Action, Combine, Concat, Copy, Goal
from treefold.planners.builder import PlanBuilder

_FOLD, _COPY = range(2)
_NO_PACK = -1


def add_one_pass(builder: PlanBuilder, leaf: int) -> None:
    """Make a leaf's first output from all contributions at once, in replica order, and copy it to its other outputs.

    The devices must share one memory. Nothing is packed: the executor reads the arrays where they lie.
    """
    work = builder.work[leaf]
    if not work.result_length:
        return
    sources = tuple(builder.inputs[leaf, replica] for replica, length in enumerate(work.lengths) if length)
    first, *others = (builder.outputs[leaf, component] for component in range(len(work.destinations)))
    made: Action
    if work.leaf.goal is Goal.COPY:
        made = Copy(sources[0], first, _NO_PACK)
    elif work.leaf.goal is Goal.FOLD:
        made = Combine(sources, first, _NO_PACK, final=True)
    else:
        made = Concat(sources, first, _NO_PACK, final=True)
    builder.act(_FOLD, made)
    for other in others:
        builder.act(_COPY, Copy(first, other, _NO_PACK))
