"""Whether the compiled module belongs to these sources: the numbers passed to it must mean the same on both sides."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from treefold.dtypes import REDUCIBLE
from treefold.errors import InstallationError
from treefold.reduce_op import ReduceOp

#: The tuples of names that the module must have, in any order: a name's place is its number.
NAMES: dict[str, tuple[str, ...]] = {
    "DTYPES": (*REDUCIBLE, "bool"),
    "OPS": tuple(op.name for op in ReduceOp),
    "ACCUMULATIONS": ("wide", "native"),
}

#: What is taken from the module, here, in ``backends`` and in ``cost``.
_FUNCTIONS = (
    *("addresses", "agree", "empty", "empty_cache", "fold", "level_names", "may_fold_in_place", "memory_info"),
    *("num_threads", "run_pipeline", "set_memory_limit", "set_num_threads", "tensors", "traffic", "views"),
)


def check_native(module: ModuleType) -> None:
    """Refuse a compiled module of other sources, which an editable installation keeps until it is built again.

    Raises:
        InstallationError: it lacks something, or knows other names.

    """
    for name in (*NAMES, *_FUNCTIONS):
        if not hasattr(module, name):
            raise InstallationError.native_lacks(name)
    for name, expected in NAMES.items():
        found: tuple[Any, ...] = getattr(module, name)
        if sorted(found) != sorted(expected):
            raise InstallationError.native_knows(name, found)
