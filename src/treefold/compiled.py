"""The compiled module: imported once, and refused if it was built from other sources than these."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from treefold.dtypes import FOLDABLE
from treefold.errors import InstallationError
from treefold.reduce_op import ReduceOp

#: The tuples of names that the module must have, in any order: a name's index is its number.
_NAMES: dict[str, tuple[str, ...]] = {
    "DTYPES": FOLDABLE,
    "OPS": tuple(op.name for op in ReduceOp),
    "ACCUMULATIONS": ("exact", "native"),
    "CERTIFICATES": ("flag", "integers", "none"),
}

#: The names that are imported from the module.
_FUNCTIONS = (
    *("HAS_SHARED_MEMORY", "TENSORFLOW_FUNCTIONS"),
    *(
        "Row",
        "RowFold",
        "certificate",
        "empty",
        "empty_cache",
        "exact_sum",
        "fold",
        "level_names",
        "memory_info",
        "new_arrays",
    ),
    *(
        "in_plain_arithmetic",
        "new_tensors",
        "num_threads",
        "read_arrays",
        "read_tensors",
        "register_fold",
        "run_pipeline",
    ),
    *(
        "LeafReader",
        "PartialArrays",
        "add_to_partial",
        "addresses_of",
        "finish_partial",
        "make_whole",
        "merge_partials",
    ),
    *("set_certificate", "set_memory_limit", "set_num_threads", "traffic"),
)

_OTHER_SOURCES = "treefold._native was built from other sources than treefold"
_BUILD = "Build it again: pip install --force-reinstall treefold, or pip install -e . in a checkout."


def _check(module: ModuleType) -> None:
    """Refuse a compiled module of other sources, which an editable installation keeps until it is built again.

    Raises:
        InstallationError: It lacks a function, or knows other names.

    """
    for name in (*_NAMES, *_FUNCTIONS):
        if not hasattr(module, name):
            raise InstallationError(f"{_OTHER_SOURCES}: it lacks {name}. {_BUILD}")
    for name, expected in _NAMES.items():
        found: tuple[Any, ...] = getattr(module, name)
        if sorted(found) != sorted(expected):
            raise InstallationError(f"{_OTHER_SOURCES}: its {name} are {', '.join(found)}. {_BUILD}")


def _load() -> ModuleType | None:
    try:
        module = importlib.import_module("treefold._native")
    except ImportError:  # a pure-Python installation: the same results, slower
        return None
    _check(module)
    return module


_module = _load()
#: Whether the module exists. Only then may anything be imported from ``treefold._native``.
HAS_NATIVE = _module is not None
#: Whether it can share memory between processes, as groups need.
HAS_SHARED_MEMORY: bool = getattr(_module, "HAS_SHARED_MEMORY", False)
#: The module's numbers of dtypes, ops, accumulations and certificates; empty without it.
DTYPES, OPS, ACCUMULATIONS, CERTIFICATES = (
    {name: number for number, name in enumerate(getattr(_module, table, ()))} for table in _NAMES
)
