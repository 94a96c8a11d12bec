"""Verifies the links between devices: every byte of random patterns, idle and under load, in every direction.

Some machines report that GPUs can reach each other's memory, copy without an error, and deliver other bytes
(virtualised or misconfigured IOMMUs, access control between PCIe ports). Only comparing the bytes shows it.
"""

from __future__ import annotations

import importlib.util
import statistics
import warnings
from collections.abc import Sequence

import numpy as np

from treefold.execution import links
from treefold.execution.links import LinkResult, LinkTable
from treefold.execution.prober import Pattern, Prober

#: Bytes per copy: less than a page, not a multiple of one, and many.
SIZES = (4_096 - 1, (1 << 20) + 1, 32 << 20)
_TRIALS = 3
_TIMED_SIZES = (64 << 10, 32 << 20)
_TIMED = 7


def verify(prober: Prober, *, use_cache: bool = True) -> LinkTable:
    """Verify every directed pair, use the results in this process, cache them, and warn of pairs that lie.

    ``use_cache``: use cached results for the same devices and driver, if there are any.
    """
    machine = prober.machine()
    table = links.load(machine) if use_cache else None
    if table is None:
        devices = list(prober.devices())
        pairs = [(source, target) for source in devices for target in devices if source != target]
        table = LinkTable(machine, tuple(_result(prober, pair, pairs) for pair in pairs))
        links.save(table)
    links.use(table.links)
    for link in table.links:
        if not link.is_proved:
            warnings.warn(
                f"Copies from {link.source} to {link.target} do not deliver what was sent ({link.problem}), so they go "
                "through the host. The usual cause is an IOMMU or PCIe access control (ACS) between the two: turn it "
                "off in the firmware, or boot with iommu=pt.",
                RuntimeWarning,
                stacklevel=3,
            )
    return table


def verify_links(*, use_cache: bool = True) -> LinkTable:
    """Prove the links between the GPUs of this machine, and between them and the host, byte by byte.

    Directed pairs are copied over idle and while all others are busy; bandwidth (bytes per second) and latency
    (seconds) are measured. Plans go by the results from then on: a pair that lies is routed through the host, with one
    warning. Results are kept per set of GPUs and driver. Takes some seconds per pair, and imports PyTorch.

    ``use_cache=False`` ignores cached results. Returns a table, which ``print`` shows; without a GPU it has no rows.
    """
    if importlib.util.find_spec("torch") is None:
        return LinkTable("", ())
    from treefold.execution.cuda.prober import CudaProber  # noqa: PLC0415 - imports PyTorch

    prober = CudaProber()
    return verify(prober, use_cache=use_cache) if prober.devices() else LinkTable("", ())


def _result(prober: Prober, pair: tuple[str, str], pairs: Sequence[tuple[str, str]]) -> LinkResult:
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
    # Two sizes make a line. The median, because an interrupt only ever adds time, and adds it to few copies.
    small, large = (_median_seconds(prober, pair, nbytes) for nbytes in _TIMED_SIZES)
    beta = max(large - small, 1e-12) / (_TIMED_SIZES[1] - _TIMED_SIZES[0])
    return LinkResult(*pair, "", 1 / beta, max(0.0, small - beta * _TIMED_SIZES[0]))


def _problem(prober: Prober, pair: tuple[str, str], when: str) -> str:
    """Return what is wrong with the bytes that arrive, empty if nothing is."""
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


def _median_seconds(prober: Prober, pair: tuple[str, str], nbytes: int) -> float:
    pattern = _pattern(pair, 0, nbytes)
    source, target = prober.put(pattern, pair[0]), prober.put(pattern, pair[1])
    # Once without the clock: the first copy of a pair may set up mappings.
    prober.seconds_to_copy(source, target)
    return statistics.median(prober.seconds_to_copy(source, target) for _ in range(_TIMED))


def _pattern(pair: tuple[str, str], trial: int, nbytes: int) -> Pattern:
    seed = [*("->".join(pair)).encode(), trial, nbytes]
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)
