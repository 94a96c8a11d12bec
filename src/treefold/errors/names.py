"""Names and places that there are not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from treefold.errors.base import TreefoldError
from treefold.errors.words import counted, short

_GATHER = (
    "Ops lay replicas behind each other by ops.gather(value, destinations, axis), groups those of all ranks by "
    "group.all_gather(value)."
)
#: What is no function of the package, and who has it. Spelt without underscores.
_ELSEWHERE = {
    "allgather": _GATHER,
    "gather": _GATHER,
    "barrier": "Groups have it: treefold.connect().barrier().",
    "batchreduce": "Ops have it: ops.batch_reduce(op, pairs).",
    "reducescatter": "Groups have it: treefold.connect().reduce_scatter(value).",
}
_MODULES = ("tensorflow", "testing", "torch")


class UnknownNameError(TreefoldError, AttributeError):
    """The package has no such name."""

    @classmethod
    def of_package(cls, name: str, public: Sequence[str]) -> Self:
        """Say what may be meant, if anything."""
        if name.startswith("__"):  # Python asks for these, and nobody reads the sentence
            return cls(f"treefold has no {name!r}.")
        if name in _MODULES:
            return cls(f"treefold.{name} is a module of its own, which is not loaded: import treefold.{name}.")
        advice = _ELSEWHERE.get(_bare(name)) or _meant(name, public) or "dir(treefold) lists what it has."
        return cls(f"treefold has no {name!r}. {advice}")


class ComponentError(TreefoldError, IndexError):
    """Distributed values have no component at a place."""

    @classmethod
    def outside(cls, owner: str, index: object, count: int) -> Self:
        return cls(
            f"{owner} has no component {short(index)}: it has {counted(count, 'component')}. Give a whole number from "
            f"{-count} to {count - 1}."
        )


def _meant(name: str, public: Sequence[str]) -> str:
    import difflib  # noqa: PLC0415 - for errors only

    bare = {_bare(one): one for one in public}
    near = difflib.get_close_matches(_bare(name), bare, 1, 0.75)
    return f"Did you mean treefold.{bare[near[0]]}?" if near else ""


def _bare(name: str) -> str:
    return name.replace("_", "").lower()
