"""How much memory a group may take on this host."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from treefold.errors import ArgumentError

_NAME = "TREEFOLD_GROUP_BYTES"
_MOST_RESULTS = 1 << 30
#: A share of the machine's memory, or of the container's.
_SHARE = 8
_MOST_ADDRESSES = 1 << 45
_PAGE = 4096
_ROOT = Path("/sys/fs/cgroup")
#: Of the second and of the first version of control groups.
_MEMORY_LIMITS = ("memory.max", "memory.limit_in_bytes")


def result_bytes() -> int:
    """Return the bound of the memory for results: the environment's, else 1 GiB or an eighth of what there is.

    Raises:
        ArgumentError: the environment says something else than a number of bytes.

    """
    text = os.environ.get(_NAME)
    if text is None:
        return min(_MOST_RESULTS, _memory() // _SHARE)
    if not (text.isascii() and text.isdecimal()) or len(text) > len(str(_MOST_ADDRESSES)) or int(text) < _PAGE:
        raise ArgumentError.setting(text, f"a whole number of bytes, {_PAGE} or more", name=_NAME)
    return int(text)


def arena_bytes(size: int) -> int:
    """Return the addresses to set aside for each rank's own arrays; memory is taken when they are made."""
    return min(_memory(), _MOST_ADDRESSES // size)


def usable_cores() -> float:
    """Return how many cores this process may use: its affinity, or less by the container's quota."""
    cores = float(len(os.sched_getaffinity(0)))
    for folder in _control_groups("cpu"):
        for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
            numbers = _numbers(folder, names)
            if len(numbers) == 2 and numbers[0] > 0:  # noqa: PLR2004 - a quota and its period; a quota of -1 is none
                cores = min(cores, numbers[0] / numbers[1])
    return cores


def _memory() -> int:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = (_numbers(folder, [name]) for folder in _control_groups("memory") for name in _MEMORY_LIMITS)
    return min([memory, *(number for limit in limits for number in limit)])


def _numbers(folder: Path, names: Sequence[str]) -> list[int]:
    """Return the numbers in some files of a control group; nothing if there is no such file, or it says "max"."""
    try:
        return [int(word) for name in names for word in (folder / name).read_text().split()]
    except (OSError, ValueError):
        return []


def _control_groups(controller: str) -> list[Path]:
    """Return the folders of this process's control groups and their parents, of both versions."""
    try:
        lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    except OSError:
        return []
    roots = {"": _ROOT, controller: _ROOT / controller}
    found = [
        (roots[name], roots[name] / path.lstrip("/"))
        for _, names, path in lines
        for name in names.split(",")
        if name in roots
    ]
    return [folder for root, group in found for folder in (group, *group.parents) if folder.is_relative_to(root)]
