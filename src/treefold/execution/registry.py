"""The registry of executors, and the choice of one for a call."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from treefold.execution.gpus import CudaExecutor
from treefold.execution.graphs import GraphExecutor
from treefold.execution.group_executors import HostsExecutor, SharedMemoryExecutor
from treefold.execution.host_memory import HostExecutor
from treefold.execution.interface import CallSummary, Executor
from treefold.execution.local import LocalExecutor
from treefold.execution.nccl import NcclExecutor
from treefold.plan import executor_traits

HOST, LOCAL, NCCL = HostExecutor(), LocalExecutor(), NcclExecutor()
SHARED_MEMORY, HOSTS = SharedMemoryExecutor(), HostsExecutor()

#: One line adds an executor. Later ones are for fewer calls, and are asked first.
_executors: dict[str, Executor] = {
    executor.name: executor
    for executor in (
        HOST,
        LOCAL,
        GraphExecutor(),
        CudaExecutor(),
        NCCL,
        SHARED_MEMORY,
        HOSTS,
    )
}
executor_traits.know(_executors)


def executor_of(name: str) -> Executor:
    """Return the executor that proved plans call by this name."""
    return _executors[name]


def choose_executor(call: CallSummary, asked: Executor | None = None) -> Executor:
    """Return the executor for a call: the last one registered that does not refuse it.

    ``asked``: the one that the ops class asks for, if any.
    """
    return next(
        executor
        for executor in reversed(_executors.values())
        if (executor is asked or not executor.is_on_request) and not executor.refusal(call)
    )


@contextlib.contextmanager
def additional_executor(executor: Executor) -> Iterator[Executor]:
    """Register an executor inside the ``with`` block, where it is asked first. Its plans cannot run outside.

    Raises:
        ValueError: there is one of this name.

    """
    if executor.name in _executors:
        raise ValueError(executor.name)
    _executors[executor.name] = executor
    try:
        yield executor
    finally:
        del _executors[executor.name]
