"""What all prices share: the cost of a launch, what counts as equally good, and the closed form of a ring."""

from __future__ import annotations

LAUNCH_S = 7e-6
"""What a call costs beside its copies: launching kernels, and waiting for each other.

A prior, the least that others have measured: NCCL and RCCL take 10 µs for a few bytes between two A100 (NVIDIA/nccl
issue 583), 12.5 between eight H20 (deepseek-ai/DeepEP issue 303), 15 between eight MI300X (microsoft/mscclpp pull
request 646), 17 to 25 between sixteen MI250X dies (ROCm/rccl pull request 929), of which some is the latency of hops.
"""


_AS_GOOD = 1.01


def is_as_good(seconds: float, least: float) -> bool:
    """Tell whether a time is within 1 % of the least, the launch left out: all pay it, and it would hide differences.

    >>> is_as_good(LAUNCH_S + 1.009e-6, LAUNCH_S + 1e-6), is_as_good(LAUNCH_S + 1.02e-6, LAUNCH_S + 1e-6)
    (True, False)
    """
    return seconds <= least or seconds - LAUNCH_S <= _AS_GOOD * (least - LAUNCH_S)


def ring_s(nbytes: float, *, count: int, bytes_per_s: float, alpha_s: float) -> float:
    """Return T = 2·(n − 1)·(alpha + S/(n·c)): n packs, each around the ring to its root and around once more.

    ``nbytes``: one replica's values (S). ``count``: devices (n). ``bytes_per_s``: one link, one direction (c).
    ``alpha_s``: one copy over one route. Folding is left out, as the simulator does unless told its cost.
    Source: Patarasuk and Yuan 2009. Two rings, one in each direction, take half the second term.

    >>> ring_s(4e9, count=4, bytes_per_s=1e9, alpha_s=0.0)
    6.0
    """
    return 2 * (count - 1) * (alpha_s + nbytes / (count * bytes_per_s))
