"""The verified links between this machine's devices: which ones deliver the right bytes, and how fast.

A link is used directly only after a probe has proved it (``treefold.verify_links``). Copies over other links go through
the host. Results are kept in a file for each set of devices and driver.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from treefold.files import write_atomically

_FORMAT = 1
_MOST_BYTES = 1 << 20  # a file of results is a few kilobytes; nothing larger is one


@dataclass(frozen=True, slots=True)
class LinkResult:
    """One direction between two devices: ``problem`` is empty if every byte arrived in every trial.

    ``bytes_per_s`` and ``alpha_s``: measured bandwidth, and seconds before the first byte arrives; 0 if it lied.
    """

    source: str
    target: str
    problem: str
    bytes_per_s: float
    alpha_s: float

    @property
    def is_proved(self) -> bool:
        """True if copies may use it directly."""
        return not self.problem


@dataclass(frozen=True, slots=True)
class LinkTable:
    """The result of ``treefold.verify_links``: one row per directed pair; ``print`` shows them as a table.

    ``machine`` names devices and driver: results hold for this set of them only.
    """

    machine: str
    links: tuple[LinkResult, ...]

    def __str__(self) -> str:
        """Return the table as text."""
        if not self.links:
            return "No pairs of devices to verify: this takes at least one GPU that a loaded framework reports."
        rows = [("from", "to", "every byte", "GB/s", "latency µs")]
        for link in self.links:
            speed = (f"{link.bytes_per_s / 1e9:.2f}", f"{link.alpha_s * 1e6:.1f}") if link.is_proved else ("-", "-")
            rows.append((link.source, link.target, link.problem or "right", *speed))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


_KINDS: dict[str, type] = {"source": str, "target": str, "problem": str, "bytes_per_s": float, "alpha_s": float}
_known: dict[tuple[str, str], LinkResult] = {}
_versions = itertools.count(1)
_version = 0


def use(results: Iterable[LinkResult]) -> None:
    """Make the plans of this process use these results."""
    global _version  # noqa: PLW0603 - what is known of the machine is the process's own
    _known.update({(link.source, link.target): link for link in results})
    # After the results: a schedule made in between is kept under the old number, and is not used again. The other way
    # round, one made of the old results would pass for new.
    _version = next(_versions)


def version() -> int:
    """Return a number that changes with what is known."""
    return _version


def is_proved(source: str, target: str) -> bool:
    """Tell whether a probe saw every byte arrive."""
    link = _known.get((source, target))
    return link is not None and link.is_proved


def known() -> tuple[LinkResult, ...]:
    """Return all that is known in this process."""
    return tuple(_known.values())


def cache_file(machine: str) -> Path:
    """Return the path of a machine's results, in the user's cache folder."""
    if sys.platform == "win32":
        folder = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    else:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return folder / "treefold" / f"links-{_digest(machine)}.json"


def load(machine: str) -> LinkTable | None:
    """Return the results kept for a machine; None if there are none, or none that can be read."""
    try:
        path = cache_file(machine)
        # Before it is read: the folder is the user's, and whatever stands there must not take all memory.
        if path.stat().st_size > _MOST_BYTES:
            return None
        return _read(json.loads(path.read_text(encoding="utf-8")), machine)
    except (OSError, ValueError, TypeError, KeyError, OverflowError, RuntimeError):  # the last: no home, or no end
        return None


def save(table: LinkTable) -> None:
    """Write results to the cache. If that fails, the next process only has to measure anew."""
    text = json.dumps({"format": _FORMAT, "machine": table.machine, "links": [asdict(link) for link in table.links]})
    try:
        path = cache_file(table.machine)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text)
    except (OSError, RuntimeError):  # the latter: no home
        return


def _read(data: Any, machine: str) -> LinkTable | None:
    if data["format"] != _FORMAT or data["machine"] != machine:
        return None
    rows = [{name: kind(link[name]) for name, kind in _KINDS.items()} for link in data["links"]]
    return LinkTable(machine, tuple(LinkResult(**row) for row in rows))


def _digest(machine: str) -> str:
    import hashlib  # noqa: PLC0415 - only where results are kept

    return hashlib.sha256(machine.encode()).hexdigest()[:16]
