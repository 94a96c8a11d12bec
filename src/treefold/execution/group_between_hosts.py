"""Runs plans whose devices belong to the ranks of several hosts: each rank walks its program over a channel."""

from __future__ import annotations

from collections.abc import Sequence

from treefold.execution.interface import CallSummary, Executor
from treefold.execution.operands import Operand, Results
from treefold.fold import Fold
from treefold.plan import Plan


class HostsExecutor(Executor):
    """Channels between hosts, shared memory within them.

    A plan alone cannot be run here: no rank has the values of the others. ``treefold.group`` runs it, on all of them.
    """

    name = "hosts"
    joins_ranks = True
    is_on_request = True
    manner = "chunk by chunk, over the channels between hosts"

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
