"""The links between this machine's devices: verified byte by byte, kept in a file, and measured.

On some machines GPUs can reach each other's memory according to the driver, copy without an error, and deliver wrong
bytes (virtualised or misconfigured IOMMUs, access control between PCIe ports). Only a comparison of the bytes shows it:
random patterns, idle and under load, in every direction. Copies use a link directly only after that test
(``treefold.verify_links``), and else go through the host. Results are kept for each set of devices and driver.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from treefold.files import write_atomically
from treefold.observing import LOG, warn

if TYPE_CHECKING:
    from treefold.execution.cuda.prober import CudaProber

_FORMAT = 1
_MOST_BYTES = 1 << 20  # a file of results is a few kilobytes; nothing larger is one


@dataclass(frozen=True, slots=True)
class LinkResult:
    """One direction between two devices.

    Args:
        source: The device that sends.
        target: The device that receives.
        problem: The first wrong bytes, in words; empty if every byte arrived in every trial.
        bytes_per_s: The measured bandwidth; 0 with a problem.
        alpha_s: The measured seconds before the first byte arrives; 0 with a problem.

    """

    source: str
    target: str
    problem: str
    bytes_per_s: float
    alpha_s: float

    @property
    def is_proved(self) -> bool:
        """Whether copies may use it directly."""
        return not self.problem


@dataclass(frozen=True, slots=True)
class LinkTable:
    """The result of ``treefold.verify_links``: one row per directed pair; ``print`` shows them as a table.

    ``machine``: names of devices and driver; the results hold for these only.
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
    """Use these results for the plans of this process."""
    global _version  # noqa: PLW0603 - what is known of the machine is the process's own
    _known.update({(link.source, link.target): link for link in results})
    # After the results: a schedule made in between has the old number, and is not used again. In the opposite order, a
    # schedule made of the old results would have the new number.
    _version = next(_versions)


def version() -> int:
    """Return a number that changes with the known results."""
    return _version


def is_proved(source: str, target: str) -> bool:
    """Return whether a probe saw every byte arrive."""
    link = _known.get((source, target))
    return link is not None and link.is_proved


def known() -> tuple[LinkResult, ...]:
    """Return all results that this process knows."""
    return tuple(_known.values())


def cache_file(machine: str) -> Path:
    """Return the path of a machine's results, in the user's cache folder."""
    if sys.platform == "win32":
        folder = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    else:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return folder / "treefold" / f"links-{_digest(machine)}.json"


def load(machine: str) -> LinkTable | None:
    """Return the results kept for a machine; None if there are none that can be read."""
    try:
        path = cache_file(machine)
        # Before it is read: any file may be in the user's folder, and a huge one must not fill the memory.
        if path.stat().st_size > _MOST_BYTES:
            return None
        return _read(json.loads(path.read_text(encoding="utf-8")), machine)
    except (OSError, ValueError, TypeError, KeyError, OverflowError, RuntimeError):  # the last: no home, or no end
        return None


def save(table: LinkTable) -> None:
    """Write results to the cache. If that fails, the next process has to measure again."""
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


Pattern = np.ndarray[Any, np.dtype[np.uint8]]


#: Bytes per copy: less than a page, not a multiple of one, and many.
SIZES = (4_096 - 1, (1 << 20) + 1, 32 << 20)
_TRIALS = 3
_TIMED_SIZES = (64 << 10, 32 << 20)
_TIMED = 7


def verify(prober: CudaProber, *, use_cache: bool = True) -> LinkTable:
    """Verify every directed pair, use the results in this process, cache them, and warn of pairs with a problem.

    Args:
        prober: Copies, and times copies.
        use_cache: Use cached results for the same devices and driver, if there are any.

    """
    machine = prober.machine()
    table = load(machine) if use_cache else None
    if table is None:
        devices = list(prober.devices())
        pairs = [(source, target) for source in devices for target in devices if source != target]
        table = LinkTable(machine, tuple(_result(prober, pair, pairs) for pair in pairs))
        save(table)
    use(table.links)
    for link in table.links:
        LOG.info("%s", link)
        if not link.is_proved:
            warn(
                f"Copies from {link.source} to {link.target} do not deliver what was sent ({link.problem}), so they go "
                "through the host. The usual cause is an IOMMU or PCIe access control (ACS) between the two: turn it "
                "off in the firmware, or boot with iommu=pt.",
                stacklevel=3,
            )
    return table


def verify_links(*, use_cache: bool = True) -> LinkTable:
    """Prove the links between the GPUs of this machine, and between them and the host, byte by byte.

    Every directed pair is copied over, idle and while all others are busy, and its bandwidth and latency are measured.
    From then on plans use the results: copies over a pair that delivers wrong bytes go through the host, with one
    warning. This takes some seconds per pair, and imports PyTorch.

    Args:
        use_cache: Use the results of an earlier run with the same GPUs and driver, if there are any; False: measure.

    Returns:
        One row per directed pair, without rows if there is no GPU; ``print`` shows a table in GB/s and µs.

    """
    if importlib.util.find_spec("torch") is None:
        return LinkTable("", ())
    from treefold.execution.cuda import prober as cuda  # noqa: PLC0415 - imports PyTorch

    prober = cuda.CudaProber()
    return verify(prober, use_cache=use_cache) if prober.devices() else LinkTable("", ())


def _result(prober: CudaProber, pair: tuple[str, str], pairs: Sequence[tuple[str, str]]) -> LinkResult:
    problem = _problem(prober, pair, "")
    if not problem and len(pairs) > 1:
        # Again under the load of all other pairs: a path may deliver the right bytes only while it is alone.
        end = prober.load([other for other in pairs if other != pair])
        try:
            problem = _problem(prober, pair, " while other links are busy")
        finally:
            end()
    if problem:
        return LinkResult(*pair, problem, 0.0, 0.0)
    # Two sizes make a line. The median, because interrupts lengthen few of the copies.
    small, large = (_median_seconds(prober, pair, nbytes) for nbytes in _TIMED_SIZES)
    beta = max(large - small, 1e-12) / (_TIMED_SIZES[1] - _TIMED_SIZES[0])
    return LinkResult(*pair, "", 1 / beta, max(0.0, small - beta * _TIMED_SIZES[0]))


def _problem(prober: CudaProber, pair: tuple[str, str], when: str) -> str:
    """Return what is wrong with the bytes that arrive; empty if nothing is."""
    for trial in range(_TRIALS):
        for nbytes in SIZES:
            pattern = _pattern(pair, trial, nbytes)
            source = prober.put(pattern, pair[0])
            target = prober.put(~pattern, pair[1])  # no byte of it is right before the copy
            prober.copy(source, target)
            wrong = np.flatnonzero(prober.get(target) != pattern)
            if wrong.size:
                return f"{wrong.size} of {nbytes} bytes are wrong{when}, the first at {wrong[0]}"
    return ""


def _median_seconds(prober: CudaProber, pair: tuple[str, str], nbytes: int) -> float:
    pattern = _pattern(pair, 0, nbytes)
    source, target = prober.put(pattern, pair[0]), prober.put(pattern, pair[1])
    # Once without the clock: the first copy of a pair may set up mappings.
    prober.seconds_to_copy(source, target)
    return statistics.median(prober.seconds_to_copy(source, target) for _ in range(_TIMED))


def _pattern(pair: tuple[str, str], trial: int, nbytes: int) -> Pattern:
    seed = [*("->".join(pair)).encode(), trial, nbytes]
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)
