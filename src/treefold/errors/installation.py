"""Errors of an installation: packages and frameworks that parts of treefold need, and its native core."""

from __future__ import annotations

import importlib
import sys
from typing import Self

from treefold.errors.base import TreefoldError

_BUILD = "Build it again: pip install --force-reinstall treefold, or pip install -e . in a checkout."


class MissingExtraError(TreefoldError, ImportError):
    """Something was asked for that needs a package that is not installed."""

    @classmethod
    def planner(cls) -> Self:
        return cls('Planning for a topology needs SciPy, which is not installed. Run pip install "treefold[planner]".')

    @classmethod
    def png(cls) -> Self:
        return cls(
            'A PNG needs resvg-py, which is not installed. Run pip install "treefold[png]", or draw an .svg or .html.'
        )


class FrameworkError(TreefoldError, ImportError):
    """A part of treefold plugs into a framework that is not there, or not as it must be."""

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
    """The parts of treefold that are installed do not belong together, or cannot be loaded here."""

    @classmethod
    def sub_interpreter(cls) -> Self:
        return cls(
            "treefold cannot be imported in a sub-interpreter, where optree, which it needs, does not load. Import it "
            "in the main interpreter of a process; under mod_wsgi, set WSGIApplicationGroup %{GLOBAL}."
        )

    @classmethod
    def native_lacks(cls, name: str) -> Self:
        """Refuse a compiled module without one of the names that treefold imports."""
        return cls(f"treefold._native was built from other sources than treefold: it lacks {name}. {_BUILD}")

    @classmethod
    def no_clock(cls) -> Self:
        return cls(
            "Simulating a plan needs treefold._native, which is not installed. "
            "Install treefold with a C++17 compiler at hand, or from a wheel."
        )

    @classmethod
    def native_knows(cls, table: str, names: tuple[str, ...]) -> Self:
        """Refuse a compiled module with other dtypes, ops or accumulations."""
        known = ", ".join(names)
        return cls(f"treefold._native was built from other sources than treefold: its {table} are {known}. {_BUILD}")


def is_sub_interpreter() -> bool:
    """Tell whether this is a sub-interpreter, where the import of optree waits for ever."""
    name = "_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters"
    try:
        interpreters = importlib.import_module(name)
    except ImportError:  # a Python without any
        return False
    return bool(interpreters.get_current() != interpreters.get_main())
