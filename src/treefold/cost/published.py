"""What others have measured of NCCL and RCCL on machines known by name, to hold predictions against.

A prediction flatters: every link at its rate, nothing waits. So no plan of ours is said to be quicker than NCCL by more
than these figures leave, and factors are printed for such sizes only as they cover.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from treefold.topology import Topology, known_topology

#: From this size on predictions were compared with published times; the errors, in bandwidth, lie between these two.
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
    """Return what is published of a machine that is known by name, all its devices taking part, by growing size."""
    found = [one for one in PUBLISHED if one.machine == machine.name]
    if not found or known_topology(machine.name).devices != machine.devices:
        return ()
    return tuple(sorted(found, key=lambda one: one.nbytes))


def published_s(machine: Topology, nbytes: float) -> float | None:
    """Return what the published figures say of this size, None where there are none or the size is below the checked.

    Between two figures on the line through them; below the smallest and above the largest at their bandwidth.

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
