"""Execution: a proved plan, arrays, and a fold become results."""

from __future__ import annotations

from collections.abc import Sequence

from treefold.backends import ArrayBackend
from treefold.errors import PlanError
from treefold.errors.words import short
from treefold.execution.interface import CallSummary, Executor, Repeat
from treefold.execution.operands import Operand, Results
from treefold.execution.registry import HOST, LOCAL, NCCL, additional_executor, choose_executor, executor_of
from treefold.fold import Fold
from treefold.plan import Plan

__all__ = [
    "HOST",
    "LOCAL",
    "NCCL",
    "CallSummary",
    "Executor",
    "Operand",
    "Repeat",
    "Results",
    "additional_executor",
    "choose_executor",
    "execute",
    "repeater",
]


def execute(
    plan: Plan,
    inputs: Sequence[Operand],
    fold: Fold | None = None,
    out: Results | None = None,
    *,
    timeout_s: float | None = None,
) -> Results:
    """Run a plan on the arrays of its leaves and return each leaf's result per component of the destination.

    ``fold`` is None for plans that only move values. ``out``, already checked, takes the results; it is written last.
    ``timeout_s``: the longest that it may take, in seconds, for executors that ``honours_timeout``.

    Raises:
        PlanError: ``plan`` is not a proved plan.

    """
    if type(plan) is not Plan:
        raise PlanError(f"An executor runs a Plan and got {short(plan)}. Make one with ops.plan or treefold.plan.Plan.")
    executor = executor_of(plan.executor)
    if timeout_s is None:
        return executor.run(plan, inputs, fold, out)
    return executor.run_within(timeout_s, plan, inputs, fold, out)


def repeater(plan: Plan, fold: Fold, backends: Sequence[ArrayBackend]) -> Repeat | None:
    """Return a callable that repeats the call of a plan on other arrays, or None if the plan's executor has none.

    ``backends``: one per leaf, that of its arrays.
    """
    return executor_of(plan.executor).repeater(plan, fold, backends)
