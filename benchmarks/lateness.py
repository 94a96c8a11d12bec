"""Measures how long after a rank's death, or after a deadline, the last of the others raises.

Run ``python benchmarks/lateness.py``. Every group is new. A death is a SIGKILL at any moment of a row of calls. A
deadline passes because one rank is stopped. Times are those of the monotonic clock that all processes share.
"""

import argparse
import contextlib
import mmap
import os
import random
import signal
import struct
import sys
import time

import numpy as np

import treefold
from treefold.errors import GroupError

_TIMES = struct.Struct("<qq")  # when the last call began, and when it ended
_MOST_RANKS = 8
_TIMEOUT_S = 0.25
_ELEMENTS = (10, 40_000, 1_000_000)


def be_rank(number: int, ticket: str, times: mmap.mmap, elements: int, timeout: float) -> None:
    """Call until another rank is gone, and write when the call began and when it raised."""
    value = np.full(elements, 2.0**number, np.float32)
    with treefold.connect(ticket, timeout_seconds=timeout) as group, contextlib.suppress(GroupError):
        while True:
            begun = time.monotonic_ns()
            try:
                group.all_reduce(value, out=value)
            finally:
                _TIMES.pack_into(times, _TIMES.size * number, begun, time.monotonic_ns())


def lateness(draw: random.Random, event: signal.Signals) -> float:
    """Return the seconds by which the last rank was late."""
    size = draw.choice((2, 3, 4, 8))
    times = mmap.mmap(-1, _TIMES.size * _MOST_RANKS)
    pids, timeout = [], 60.0 if event == signal.SIGKILL else _TIMEOUT_S
    elements = draw.choice(_ELEMENTS)
    for number, ticket in enumerate(treefold.Ticket.for_ranks(size)):
        pids.append(os.fork())
        if pids[-1] == 0:
            try:
                be_rank(number, ticket, times, elements, timeout)
            finally:
                os._exit(0)
    while any(_times(times, rank)[1] == 0 for rank in range(size)):
        time.sleep(0.001)
    time.sleep(draw.random() * 0.05)
    victim = draw.randrange(size)
    happened = time.monotonic_ns()
    os.kill(pids[victim], event)
    others = [rank for rank in range(size) if rank != victim]
    for rank in others:
        os.waitpid(pids[rank], 0)
    os.kill(pids[victim], signal.SIGKILL)
    os.waitpid(pids[victim], 0)
    if event == signal.SIGSTOP:
        happened = min(_times(times, rank)[0] for rank in others) + int(timeout * 1e9)
    return (max(_times(times, rank)[1] for rank in others) - happened) / 1e9


def _times(times: mmap.mmap, rank: int) -> tuple[int, int]:
    begun, ended = _TIMES.unpack_from(times, _TIMES.size * rank)
    return begun, ended


def main() -> None:
    """Measure, and print the median, the 99th percentile and the most."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200, help="of deaths, and of deadlines")
    count = parser.parse_args().count
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, Python {sys.version.split()[0]}")
    for name, event in (("deaths", signal.SIGKILL), ("deadlines", signal.SIGSTOP)):
        draw = random.Random(name)  # noqa: S311 - cases, no secrets
        late = np.array([lateness(draw, event) for _ in range(count)]) * 1e3
        middle, most = np.percentile(late, 50), np.percentile(late, 99)
        print(f"{count} {name}: median {middle:.0f} ms, 99 % within {most:.0f} ms, most {late.max():.0f} ms")


if __name__ == "__main__":
    main()
