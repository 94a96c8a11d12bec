"""Frameworks that are not installed, or too old."""

from __future__ import annotations

from typing import Self

from treefold.errors.base import TreefoldError


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
