"""The needs of commands, checked before they work: packages of extras, and files that can be written."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from treefold.errors import CommandError
from treefold.files import check_writable


class Extra(NamedTuple):
    """The use of an extra, and its packages by the modules that they contain."""

    serves: str
    packages: dict[str, str]


#: Of extras that share a module, the smallest stands first.
EXTRAS = {
    "planner": Extra("treefold plan and simulate", {"scipy": "scipy"}),
    "files": Extra("treefold average", {"ml_dtypes": "ml_dtypes"}),
    "nvml": Extra("treefold topology with NVIDIA GPUs", {"pynvml": "nvidia-ml-py"}),
    "demo": Extra("treefold demo", {"sklearn": "scikit-learn", "threadpoolctl": "threadpoolctl"}),
    "torch": Extra("PyTorch tensors and files", {"torch": "torch", "ml_dtypes": "ml_dtypes"}),
    "jax": Extra("JAX arrays", {"jax": "jax"}),
}


def has_module(name: str) -> bool:
    """Tell whether a module can be found, without importing it."""
    return importlib.util.find_spec(name) is not None


def check_modules(names: Iterable[str]) -> None:
    """Refuse a command before it works if modules are missing. The sentence has one pip command for all of them."""
    missing = [name for name in names if not has_module(name)]
    if missing:
        raise needing(missing)


def needing(modules: Iterable[str]) -> CommandError:
    """Return the error that names missing packages and the extras that contain them."""
    found = [
        next((extra, each.packages[name]) for extra, each in EXTRAS.items() if name in each.packages)
        for name in modules
    ]
    return CommandError.missing_packages(
        [package for _, package in found], list(dict.fromkeys(extra for extra, _ in found))
    )


def is_of_an_extra(module: str) -> bool:
    """Tell whether an extra contains a module."""
    return any(module in extra.packages for extra in EXTRAS.values())


def check_output(option: str, path: Path) -> None:
    """Refuse a file that could not be written at the end, with a ``CommandError`` that names its option."""
    try:
        check_writable(path)
    except OSError as error:
        raise CommandError.unwritable(option, path, error) from None
