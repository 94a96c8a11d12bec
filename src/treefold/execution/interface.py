"""The interface between treefold and the executors of its plans.

A new executor is one file with a subclass of ``Executor``, one line in ``execution/__init__.py``, and one in
``plan/plan.py``, which holds the abilities on which its plans depend. The class itself says which calls it refuses.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from treefold.backends import ArrayBackend, HostArray, Row
from treefold.fold import Fold
from treefold.options import CommunicationImplementation
from treefold.plan import Plan


@dataclass(frozen=True, slots=True)
class Operand:
    """The contributions to one leaf, in replica order, and the shape of its result.

    ``views``: NumPy's views of the arrays in host memory, None for those that are not made yet.
    """

    backend: ArrayBackend
    arrays: tuple[Any, ...]
    shape: tuple[int, ...]
    views: tuple[HostArray | None, ...] = ()


#: For each leaf of a plan, its result on each component of the destination.
Results = list[tuple[Any, ...]]


def handed_over(inputs: Sequence[Operand], results: Results, out: Results | None) -> Results:
    """Return the results; with ``out``, copy them into its arrays once all are computed, and return ``out``."""
    if out is None:
        return results
    for operand, targets, arrays in zip(inputs, out, results, strict=True):
        for target, array in zip(targets, arrays, strict=True):
            operand.backend.assign(target, array)
    return out


@dataclass(frozen=True, slots=True)
class CallSummary:
    """The facts about a call that an executor sees before the call is planned; no arrays.

    Args:
        frameworks: The framework of each leaf.
        routes: The sources and destinations of each value.
        devices: All devices that the call or its ops object names.
        accumulate: How additions are made, as plans name it.
        is_in_host_memory: Whether all contributions and results are in host memory.

    """

    frameworks: tuple[str, ...]
    routes: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]
    devices: frozenset[str]
    accumulate: str
    is_in_host_memory: bool


#: Repeats one kind of call on other rows of the same kind, from many threads. It returns the new results of each row,
#: or an empty list if it wrote them into the second argument, which may be the first. It returns None, with nothing
#: done, if the call needs the slow path, for an error for instance.
Repeat = Callable[[list[Row], list[Row] | None], Results | None]


class Executor(abc.ABC):
    """Runs plans. One object serves all calls, from many threads; making it loads no framework."""

    #: The name by which plans refer to it.
    name: str
    #: Whether it runs a call only if the ops class asks for it.
    is_on_request: bool = False
    #: Whether there is ``run_within``, for calls with ``timeout_seconds``; elsewhere the option is refused.
    honours_timeout: bool = False
    #: The values of a call's ``implementation`` that it honours; others are refused.
    implementations: frozenset[CommunicationImplementation] = frozenset({CommunicationImplementation.AUTO})
    #: Whether a library all-reduces whole packs for it. In such a plan every device gets every contribution.
    reduces_packs: bool = False

    @property
    def kernel(self) -> str:
        """The name of the arithmetic in plans, for executors of host memory; else empty."""
        return ""

    def is_exact(self, call: CallSummary) -> bool:  # noqa: ARG002 - some executors are for some calls
        """Tell whether it makes sums and means exact, if all contributions to one meet as they are."""
        return bool(self.kernel)

    def note(self, call: CallSummary, fold: Fold) -> str:  # noqa: ARG002 - as above
        """Return what a user should know of how it folds, empty if there is nothing."""
        return ""

    @abc.abstractmethod
    def refusal(self, call: CallSummary) -> str:
        """Return why the executor cannot run a call, in words; empty if it can."""

    @abc.abstractmethod
    def run(self, plan: Plan, inputs: Sequence[Operand], fold: Fold | None, out: Results | None) -> Results:
        """Return each leaf's result per component of the destination; with ``out``, in the arrays given.

        All memory is allocated, and all callbacks have run, before anything is written into ``out``.
        """

    def run_within(
        self, timeout_s: float | None, plan: Plan, inputs: Sequence[Operand], fold: Fold | None, out: Results | None
    ) -> Results:
        """Run the plan as ``run`` does and wait for the end; raise an error after ``timeout_s`` seconds."""
        raise NotImplementedError(timeout_s, plan, inputs, fold, out)

    def repeater(self, plan: Plan, fold: Fold, backends: Sequence[ArrayBackend]) -> Repeat | None:  # noqa: ARG002
        """Return a callable that repeats the call of a plan on other arrays, or None if the executor has none.

        ``backends``: the backend of each leaf's arrays.
        """
        return None
