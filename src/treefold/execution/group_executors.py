"""Executors of plans whose devices belong to the ranks of a group, which runs them.

Such a plan alone cannot be run here: no rank has the values of the others. ``treefold.group`` runs it, on all of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from treefold.execution.interface import CallSummary, Executor, Operand, Results
from treefold.fold import Fold
from treefold.plan import Plan


class SharedMemoryExecutor(Executor):
    """One host: every element is folded once, by the rank that owns its slice, from where all ranks can read it."""

    name = "shared_memory"
    shares_memory = True
    joins_ranks = True
    most_devices_in_one_pass = math.inf
    is_on_request = True

    @property
    def kernel(self) -> str:
        """The native core's, whose name is the same on all ranks, whatever proves its sums exact there."""
        return "native"

    def refusal(self, call: CallSummary) -> str:  # noqa: ARG002
        """Refuse calls of one process."""
        return "it joins the ranks of a group"

    def run(self, plan: Plan, inputs: Sequence[Operand], fold: Fold | None, out: Results | None) -> Results:
        """Do nothing: a rank has its own values only."""
        raise NotImplementedError(plan, inputs, fold, out)


class HostsExecutor(SharedMemoryExecutor):
    """Several hosts: each rank walks its program, over channels between hosts and shared memory within them."""

    name = "hosts"
    shares_memory = False
    most_devices_in_one_pass = 0
    manner = "chunk by chunk, over the channels between hosts"
