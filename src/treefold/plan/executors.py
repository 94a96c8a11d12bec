"""What plans must know of the executors that run them. Executors stand above; plans find them here, by name."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from treefold.errors import PlanError
from treefold.errors.words import listed

#: The executor that does what a plan says, step by step: that of plans for machines that are not this one.
STEP_BY_STEP = "local"


class ExecutorTraits:
    """What the checks of a plan, its promise and its text depend on; ``execution.interface.Executor`` adds the rest."""

    #: What plans name it by.
    name: str
    #: Whether all devices are one host's memory: each reads what lies on another, and nothing travels.
    shares_memory: bool = False
    #: Up to how many devices it folds every element once, in replica order, whatever the steps say; 0 for never.
    most_devices_in_one_pass: float = 0
    #: What its plans promise whose folds it orders by itself; empty where the steps or the one pass order them.
    own_promise: str = ""
    #: How it runs a plan that is not one pass, in words.
    manner: str = "step by step"

    def runs_in_one_pass(self, devices: Collection[str]) -> bool:
        """Tell whether plans on these devices are folded in one pass. On one memory there are no links to spare."""
        return bool(self.most_devices_in_one_pass) and len(devices) <= self.most_devices_in_one_pass


_known: Mapping[str, ExecutorTraits] = {}


def know(executors: Mapping[str, ExecutorTraits]) -> None:
    """Look executors up in this mapping from now on, which their registry owns and may change."""
    global _known  # noqa: PLW0603 - there is one registry, and it stands where this room cannot see it
    _known = executors


def executor_traits(name: str) -> ExecutorTraits:
    """Return what is known of an executor.

    Raises:
        PlanError: there is none of this name.

    """
    if name not in tuple(_known):  # compared, not hashed: it may be anything
        raise PlanError.in_head(PlanError.malformed(f"executor {name!r} is not {listed(tuple(_known))}"))
    return _known[name]
