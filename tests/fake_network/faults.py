"""Faults of the ranks and hosts of a fake network."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kill:
    """A rank dies at its nth call of its channels, counted from 1."""

    rank: int
    call: int


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
