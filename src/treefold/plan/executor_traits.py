"""The traits of executors that plans depend on. Plans may not import executors, so they look them up here by name."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from treefold.errors import PlanError
from treefold.errors.words import listed

#: The executor that runs plans step by step, on any backend. Plans for other machines name it.
STEP_BY_STEP = "local"


class ExecutorTraits:
    """The attributes that a plan's checks, guarantee and text depend on; ``execution.interface`` has the rest."""

    #: The name by which plans refer to it.
    name: str
    #: Whether all devices are in one host's memory, so that each can read the others and nothing travels.
    shares_memory: bool = False
    #: Whether that host's memory is that of several processes, whose devices have ranks.
    joins_ranks: bool = False
    #: The largest number of devices on which it folds in one pass, in replica order, without the steps; 0: never.
    most_devices_in_one_pass: float = 0
    #: The guarantee of plans whose folds the executor itself orders; empty if the steps or the one pass order them.
    own_promise: str = ""
    #: Words for the manner in which it runs a plan that is not one pass.
    manner: str = "step by step"

    def reaches(self, kind: str) -> bool:
        """Tell whether the memory that it shares is that of devices of a type, such as ``"cpu"``."""
        return kind == "cpu" or (self.joins_ranks and kind.endswith("/cpu"))

    def runs_in_one_pass(self, devices: Collection[str]) -> bool:
        """Tell whether plans on these devices are folded in one pass. On one memory there are no links to spare."""
        return bool(self.most_devices_in_one_pass) and len(devices) <= self.most_devices_in_one_pass


_known: Mapping[str, ExecutorTraits] = {}


def know(executors: Mapping[str, ExecutorTraits]) -> None:
    """Set the mapping in which executors are looked up; their registry owns it and may change it."""
    global _known  # noqa: PLW0603 - there is one registry, in a room that this one may not import
    _known = executors


def executor_traits(name: str) -> ExecutorTraits:
    """Return the traits of an executor.

    Raises:
        PlanError: there is none of this name.

    """
    if name not in tuple(_known):  # `in` a tuple compares and does not hash: the name may be any object
        raise PlanError.in_head(PlanError.malformed(f"executor {name!r} is not {listed(tuple(_known))}"))
    return _known[name]
