"""Published measurements of NCCL and RCCL on machines known by name, to compare predictions with.

Predictions are optimistic: every link runs at its rate, and nothing waits. A plan is therefore not called faster than
NCCL by more than these figures allow, and factors are printed only for sizes that they cover.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass

from treefold.topology.graph import Topology
from treefold.topology.known import known_topology

#: Predictions were compared with published times from this size on. The errors in bandwidth lie between these two.
CHECKED_FROM, CHECKED_ERRORS = 2**28, (-0.21, +0.20)


@dataclass(frozen=True, slots=True)
class Published:
    """The seconds that ``library`` took to all-reduce ``nbytes`` bytes per device on the known machine ``machine``."""

    machine: str
    library: str
    nbytes: int
    seconds: float
    source: str


PUBLISHED = (
    # NVIDIA says 275 GB/s for large values, and the question there is about 250 GB/s at 256 MiB.
    Published("dgx_h100", "NCCL, reducing in the switch,", 2**28, 2**28 / 250e9, "NVIDIA/nccl-tests issue 212"),
    Published("dgx_h100", "NCCL, reducing in the switch,", 2**33, 2**33 / 275e9, "NVIDIA/nccl-tests issue 212"),
    Published("2x8_h100", "NCCL", 2**28, 1.47e-3, "nccl-tests over 8 x 400 Gb/s"),
    Published("2x8_h100", "NCCL, reducing in the switch,", 2**33, 2**33 / 260e9, "nccl-tests on H200, 8 x 400 Gb/s"),
    Published("mi300x", "RCCL", 2**28, 1.33e-3, "rccl-tests"),
)


def published_for(machine: Topology) -> tuple[Published, ...]:
    """Return the figures for a machine that is known by name and whole, by growing size."""
    found = [one for one in PUBLISHED if one.machine == machine.name]
    if not found or _devices(machine.name) != machine.devices:
        return ()
    return tuple(sorted(found, key=lambda one: one.nbytes))


@functools.cache
def _devices(machine: str) -> tuple[str, ...]:
    return known_topology(machine).devices


def published_s(machine: Topology, nbytes: float) -> float | None:
    """Return the published seconds for a size; None if there are no figures, or the size is below ``CHECKED_FROM``.

    Times between two figures are interpolated linearly. Outside of the figures, the nearest one's bandwidth is used.

    >>> published_s(known_topology("mi300x"), 2**29)
    0.00266
    >>> published_s(known_topology("dgx2"), 2**29) is published_s(known_topology("mi300x"), 2**20) is None
    True
    """
    known = published_for(machine)
    if not known or nbytes < CHECKED_FROM:
        return None
    for low, high in itertools.pairwise(known):
        if low.nbytes <= nbytes <= high.nbytes:
            part = (nbytes - low.nbytes) / (high.nbytes - low.nbytes)
            return low.seconds + part * (high.seconds - low.seconds)
    nearest = known[0] if nbytes < known[0].nbytes else known[-1]
    return nearest.seconds * nbytes / nearest.nbytes
