"""What happens to the ranks and hosts of a fake network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True)
class Kill:
    """A rank dies at its nth call of its channels, counted from 1, or some seconds after that call began."""

    rank: int
    call: int
    after: float = 0.0


@dataclass(frozen=True, slots=True)
class Stop:
    """A rank falls silent at its nth call of its channels, counted from 1, and goes on there later, or never."""

    rank: int
    call: int
    seconds: float = math.inf


@dataclass(frozen=True, slots=True)
class Cut:
    """Nothing reaches or leaves a host from a moment on; what is on its way arrives when that is mended, or never."""

    host: int
    at: float
    mended: float = math.inf


Fault = Kill | Stop | Cut


def draw_faults(
    seed: object, hosts: Sequence[int], *, calls: int = 60, seconds: float = 1.0, most: int = 2
) -> tuple[Fault, ...]:
    """Return some faults, ``most`` at most: within so many calls of a rank, or so many seconds of the network.

    >>> draw_faults(18, hosts=[0, 0, 1])
    (Kill(rank=2, call=31, after=0.0),)
    """
    random = Random(f"faults of {seed}")  # noqa: S311 - a test's choice
    faults: list[Fault] = []
    for _ in range(random.randrange(most + 1)):
        kind, rank, call = random.randrange(3), random.randrange(len(hosts)), random.randint(1, calls)
        length = random.choice([math.inf, seconds * random.random(), 1000.0 * seconds])
        if kind == 0:
            faults.append(Kill(rank, call, random.choice([0.0, random.random() * seconds])))
        elif kind == 1:
            faults.append(Stop(rank, call, length))
        else:
            start = random.random() * seconds
            faults.append(Cut(hosts[rank], start, start + length))
    return tuple(faults)
