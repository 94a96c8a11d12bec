"""The seam between treefold and what runs its plans.

A new executor is one file with a subclass of ``Executor``, one line in ``execution/__init__.py``, and one in
``plan/plan.py``, which says what plans of its name promise. What it can do, refuses and honours is asked here.
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

    ``views``: NumPy views of the arrays in host memory, as far as the caller has made them.
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

    ``frameworks``: of each leaf. ``routes``: sources and destinations of each value. ``devices``: all that the call
    names, and its ops object. ``is_in_host_memory``: whether all contributions and results are.
    """

    frameworks: tuple[str, ...]
    routes: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]
    devices: frozenset[str]
    accumulate: str
    is_in_host_memory: bool


#: Repeats one kind of call on other rows of the same kind, from many threads. It returns the new results of each row,
#: or none if they are written into the second argument, which may be the first. None, with nothing done: the call needs
#: the slow path, which will say what is wrong.
Repeat = Callable[[list[Row], list[Row] | None], Results | None]


class Executor(abc.ABC):
    """Runs plans. One object serves all calls, from many threads; making it loads no framework."""

    #: The name by which plans refer to it.
    name: str
    #: Whether it runs those calls only whose ops class asks for it.
    is_on_request: bool = False
    #: Whether there is ``run_within``, for calls with ``timeout_seconds``; elsewhere the option is refused.
    honours_timeout: bool = False
    #: The values of a call's ``implementation`` that it honours; others are refused.
    implementations: frozenset[CommunicationImplementation] = frozenset({CommunicationImplementation.AUTO})
    #: Whether a library all-reduces whole packs for it. In such a plan every device gets every contribution.
    reduces_packs: bool = False

    @property
    def kernel(self) -> str:
        """What does the arithmetic, if plans are to name it, as of host memory."""
        return ""

    @abc.abstractmethod
    def refusal(self, call: CallSummary) -> str:
        """Return why it does not run a call, in words; empty if it does."""

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

        ``backends``: one per leaf, that of its arrays.
        """
        return None
