"""How much memory a group may take on this host."""

from __future__ import annotations

import os
from pathlib import Path

from treefold.errors import ArgumentError

_NAME = "TREEFOLD_GROUP_BYTES"
_MOST_RESULTS = 1 << 30
#: A share of the machine's memory, or of the container's.
_SHARE = 8
_MOST_ADDRESSES = 1 << 45
_PAGE = 4096


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
    for folder in _control_groups():
        try:
            quota, period = (folder / "cpu.max").read_text().split()
        except (OSError, ValueError):
            continue
        if quota != "max":
            cores = min(cores, int(quota) / int(period))
    return cores


def _memory() -> int:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for folder in _control_groups():
        try:
            memory = min(memory, int((folder / "memory.max").read_text()))
        except (OSError, ValueError):
            continue
    return memory


def _control_groups() -> list[Path]:
    """Return the folders of this process's control group and its parents."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    found = [line.removeprefix("0::/") for line in lines if line.startswith("0::/")]
    root = Path("/sys/fs/cgroup")
    return [folder for path in found for folder in (root / path, *(root / path).parents) if folder.is_relative_to(root)]
