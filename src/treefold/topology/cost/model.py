"""The parts that all prices share: the cost of a launch, and when two times are equally good."""

from __future__ import annotations

LAUNCH_S = 7e-6
"""The seconds that a call costs beside its copies: launching kernels and synchronising devices.

The value is a prior, below what others have measured: NCCL and RCCL take 10 µs for a few bytes between two A100
(NVIDIA/nccl issue 583), 12.5 between eight H20 (deepseek-ai/DeepEP issue 303), 15 between eight MI300X
(microsoft/mscclpp pull request 646), 17 to 25 between sixteen MI250X dies (ROCm/rccl pull request 929). A part of these
times is the latency of hops.
"""


_AS_GOOD = 1.01


def is_as_good(seconds: float, least: float) -> bool:
    """Tell whether a time is within 1 % of the least, without the launch, which all pay and which hides differences.

    >>> is_as_good(LAUNCH_S + 1.009e-6, LAUNCH_S + 1e-6), is_as_good(LAUNCH_S + 1.02e-6, LAUNCH_S + 1e-6)
    (True, False)
    """
    return seconds <= least or seconds - LAUNCH_S <= _AS_GOOD * (least - LAUNCH_S)
