"""The machine of a run: processor, caches, memory, system, versions."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from treefold.execution import native
from treefold.files import readable_text

_CPUINFO = Path("/proc/cpuinfo")
_MEMINFO = Path("/proc/meminfo")
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


def describe_machine() -> dict[str, str]:
    """Return facts about this machine, by name; none identifies its owner or its name."""
    levels = native.vector_levels()
    facts = {
        "processor": _field(_CPUINFO, "model name") or platform.processor() or platform.machine(),
        "cores": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1),
        "caches": ", ".join(_caches()),
        "memory": _field(_MEMINFO, "MemTotal") or "",
        "system": f"{platform.system()} {platform.machine()}",
        "vector level": levels[native.level()] if levels else "none: no native core",
    }
    return {name: fact for name, fact in facts.items() if fact}


def describe_versions(packages: Sequence[str] = ()) -> dict[str, str]:
    """Return the versions of Python, treefold, NumPy and those of ``packages`` that are installed."""
    versions = {"python": platform.python_version()}
    for package in ("treefold", "numpy", *packages):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions


def available_memory() -> int | None:
    """Return the bytes that can be taken without swapping; None if the system does not report them."""
    words = (_field(_MEMINFO, "MemAvailable") or "").split()
    return int(words[0]) * 1024 if words else None


def _field(path: Path, name: str) -> str | None:
    for line in readable_text(path).splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return None


def _caches() -> list[str]:
    found = []
    for index in sorted(_CACHES.glob("index*")):
        level, kind, size = (readable_text(index / part) for part in ("level", "type", "size"))
        if size and kind != "Instruction":
            found.append(f"L{level} {size}")
    return found
