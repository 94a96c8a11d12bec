"""Execution: a proved plan, arrays, and a fold become results."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence

from treefold.errors import PlanError
from treefold.execution import host, local
from treefold.execution.kernel import KERNEL
from treefold.execution.operands import Operand, Results
from treefold.fold import Fold
from treefold.plan import Plan

__all__ = ["KERNEL", "Operand", "Results", "execute"]

_EXECUTORS: dict[str, Callable[..., Results]] = {"host": host.run, "local": local.run}


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
    ``timeout_s``, for the ``nccl`` executor only: the longest that it may take, in seconds.

    Raises:
        PlanError: ``plan`` is not a proved plan.

    """
    if type(plan) is not Plan:
        raise PlanError.not_a_plan(plan)
    run = _EXECUTORS.get(plan.executor)
    if run is None:  # the others import the framework whose devices they run on
        run = importlib.import_module(f"treefold.execution.{plan.executor}").run
    return run(plan, inputs, fold, out, *(() if timeout_s is None else (timeout_s,)))
