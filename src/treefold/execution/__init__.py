"""Execution: runs a proved plan on arrays, and chooses an executor from the registry."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence

from treefold.backends import ArrayBackend
from treefold.errors import PlanError
from treefold.errors.words import short
from treefold.execution.gpus import CudaExecutor, NcclExecutor
from treefold.execution.graphs import GraphExecutor
from treefold.execution.host_memory import HostExecutor
from treefold.execution.interface import CallSummary, Executor, Operand, Repeat, Results
from treefold.execution.local import LocalExecutor
from treefold.fold import Fold
from treefold.observing import OBSERVER, observed, words_of
from treefold.plan import ExecutorTraits, Plan
from treefold.plan.plan import EXECUTORS

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

HOST, LOCAL, NCCL = HostExecutor(), LocalExecutor(), NcclExecutor()
#: One line adds an executor. Later ones run fewer kinds of calls, and are asked first.
_executors: dict[str, Executor] = {
    executor.name: executor for executor in (HOST, LOCAL, GraphExecutor(), CudaExecutor(), NCCL)
}


def choose_executor(call: CallSummary, asked: Executor | None = None) -> Executor:
    """Return the executor for a call: the last one registered that does not refuse it.

    ``asked``: the executor that the ops class asks for; None if it asks for none.
    """
    return next(
        executor
        for executor in reversed(_executors.values())
        if (executor is asked or not executor.is_on_request) and not executor.refusal(call)
    )


@contextlib.contextmanager
def additional_executor(executor: Executor, traits: ExecutorTraits | None = None) -> Iterator[Executor]:
    """Register an executor inside the ``with`` block, where it is asked first. Its plans cannot run outside.

    ``traits``: the abilities on which its plans depend; None for an executor that walks their steps.

    Raises:
        ValueError: There is one of this name.

    """
    if executor.name in EXECUTORS:
        raise ValueError(executor.name)
    _executors[executor.name], EXECUTORS[executor.name] = executor, traits or ExecutorTraits()
    try:
        yield executor
    finally:
        del _executors[executor.name], EXECUTORS[executor.name]


def execute(
    plan: Plan,
    inputs: Sequence[Operand],
    fold: Fold | None = None,
    out: Results | None = None,
    *,
    timeout_s: float | None = None,
) -> Results:
    """Run a plan on the arrays of its leaves.

    Args:
        plan: A proved plan.
        inputs: The contributions to each leaf.
        fold: The arithmetic; None for plans that only move values.
        out: Arrays, already checked, that take the results; they are written last. None: new arrays.
        timeout_s: The most seconds that the call may take, for executors with ``honours_timeout``; None: no limit.

    Returns:
        For each leaf, its result on each component of the destination.

    Raises:
        PlanError: ``plan`` is not a proved plan.

    """
    if type(plan) is not Plan:
        raise PlanError(f"An executor runs a Plan and got {short(plan)}. Make one with ops.plan or treefold.plan.Plan.")
    executor = _executors[plan.executor]
    run = executor.run if timeout_s is None else functools.partial(executor.run_within, timeout_s)
    if OBSERVER.is_on:
        run = observed(run, words_of(plan, "" if fold is None else fold.op.name))
    return run(plan, inputs, fold, out)


def repeater(plan: Plan, fold: Fold, backends: Sequence[ArrayBackend]) -> Repeat | None:
    """Return a callable that repeats the call of a plan on other arrays, or None if the plan's executor has none.

    ``backends``: the backend of each leaf's arrays.
    """
    return _executors[plan.executor].repeater(plan, fold, backends)
