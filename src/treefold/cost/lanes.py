"""Lanes: what the simulator moves chunks on, one after another, sharing resources fairly with other lanes.

A lane pays its latency before each chunk, as a copy that is started does, and needs no bandwidth meanwhile. Then the
chunk flows at the lane's fair rate, which changes whenever a lane that it shares with begins or ends.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lane:
    """A task, or the part of it that takes one route.

    ``nbytes``: of one chunk. ``resources``: indices of what it shares with others; none means that it takes no time
    but its latency.
    """

    task: int
    nbytes: float
    alpha_s: float
    resources: tuple[int, ...]


Needs = tuple[tuple[int, tuple[int, ...]], ...]  # (task, how many of its chunks must be done, by chunk)
