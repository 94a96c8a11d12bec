"""The base of all errors, and those of the installation, of names, and of GPUs."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

_GATHER = (
    "Ops lay replicas behind each other by ops.gather(value, destinations, axis), groups those of all ranks by "
    "group.all_gather(value)."
)
#: Names that are not functions of the package, without underscores, and where they are methods.
_ELSEWHERE = {
    "allgather": _GATHER,
    "gather": _GATHER,
    "barrier": "Groups have it: treefold.connect().barrier().",
    "batchreduce": "Ops have it: ops.batch_reduce(op, pairs).",
    "reducescatter": "Groups have it: treefold.connect().reduce_scatter(value).",
}
_MODULES = ("tensorflow", "testing", "torch")


class TreefoldError(Exception):
    """Base of all errors that treefold raises on purpose."""

    # AutoGraph replaces an error by one of the same class with a trace of its own, if the class has Exception's own
    # __init__. For any other class it makes an error that is not a ValueError.
    if not TYPE_CHECKING:
        __init__ = Exception.__init__

    #: Whether all ranks of a group raise it, so that the group goes on.
    is_alike = False

    def alike(self) -> Self:
        """Return the error itself, marked as one that all ranks of a group raise.

        :meta private:
        """
        self.is_alike = True
        return self

    def in_pair(self, index: int) -> Self:
        """Return the same error, with the number of its pair in the batch."""
        error: Self = type(self)(f"Pair {index}: {self}")
        return error


class MissingExtraError(TreefoldError, ImportError):
    """A call needs a package that is not installed."""


class FrameworkError(TreefoldError, ImportError):
    """A part of treefold needs a framework that is not installed, or is too old."""

    @classmethod
    def missing(cls, module: str, framework: str, package: str, oldest: str) -> Self:
        return cls(f"{module} needs {framework} {oldest} or newer, and it is not installed. Run pip install {package}.")

    @classmethod
    def too_old(cls, module: str, framework: str, found: str, oldest: str) -> Self:
        return cls(
            f"{module} found {framework} {found}. It takes {oldest} or newer; upgrade {framework}, or use the ops of "
            f"treefold itself on NumPy arrays."
        )


class InstallationError(TreefoldError, ImportError):
    """The installed parts of treefold do not belong together, or cannot be loaded here."""


def is_sub_interpreter() -> bool:
    """Return whether this is a sub-interpreter, where the import of optree waits for ever."""
    name = "_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters"
    try:
        interpreters = importlib.import_module(name)
    except ImportError:  # a Python without any
        return False
    return bool(interpreters.get_current() != interpreters.get_main())


class UnknownNameError(TreefoldError, AttributeError):
    """The package has no such name."""

    @classmethod
    def of_package(cls, name: str, public: Sequence[str]) -> Self:
        """Return the error for a name, with the name that may be meant, if there is one."""
        if name.startswith("__"):  # Python looks these up itself, and shows no sentence
            return cls(f"treefold has no {name!r}.")
        if name in _MODULES:
            return cls(f"treefold.{name} is a module of its own, which is not loaded: import treefold.{name}.")
        advice = _ELSEWHERE.get(_bare(name)) or _meant(name, public) or "dir(treefold) lists what it has."
        return cls(f"treefold has no {name!r}. {advice}")


class ComponentError(TreefoldError, IndexError):
    """Distributed values have no component of this index."""


def _meant(name: str, public: Sequence[str]) -> str:
    import difflib  # noqa: PLC0415 - for errors only

    bare = {_bare(one): one for one in public}
    near = difflib.get_close_matches(_bare(name), bare, 1, 0.75)
    return f"Did you mean treefold.{bare[near[0]]}?" if near else ""


def _bare(name: str) -> str:
    return name.replace("_", "").lower()


class GpuError(TreefoldError, RuntimeError):
    """A reduction on GPUs that cannot start or did not end."""


class ConformanceError(TreefoldError, AssertionError):
    """A backend or a channel breaks a rule of its interface."""


class FakeOutOfMemoryError(TreefoldError, MemoryError):
    """A fake device failed, as it was told to."""
