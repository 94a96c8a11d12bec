"""What all prices share: the cost of a launch, and what counts as equally good."""

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
