"""The interface between a library and the worker that runs it."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from typing import Any

from treefold.bench.contents import Array, new_input
from treefold.bench.work import Work

#: Does the work once and returns when it is done.
Call = Callable[[], Any]


class Peer(abc.ABC):
    """One library: holds the contributions, offers its forms of doing the work, shows their results as NumPy arrays."""

    #: Whether one process has all replicas; else each has the replica of its rank.
    has_all_replicas = True

    def __init__(self, work: Work, rank: int) -> None:
        """Store the work of the process with this rank."""
        self.work = work
        self.replicas = range(work.devices) if self.has_all_replicas else range(rank, rank + 1)

    def new_inputs(self, *, is_zero: bool) -> list[list[Array]]:
        """Return for each tensor the contributions of this process's replicas."""
        tensors = range(len(self.work.shapes))
        return [[new_input(self.work, r, t, is_zero=is_zero) for r in self.replicas] for t in tensors]

    @abc.abstractmethod
    def load(self, *, is_zero: bool) -> None:
        """Take new contributions in the place of the ones before."""

    @abc.abstractmethod
    def forms(self) -> Mapping[str, Call]:
        """Return the forms of the work by name; ``read`` takes what a call returns.

        Raises:
            PeerError: it cannot.

        """

    @abc.abstractmethod
    def read(self, result: Any) -> list[list[Array]]:
        """Return for each tensor the distinct results of one call on this process."""

    def start(self, form: str) -> None:  # noqa: B027 - most have nothing to prepare
        """Prepare for calls of one form."""

    def barrier(self) -> None:  # noqa: B027 - a peer of one process has nobody to wait for
        """Wait for the other processes, if there are any."""
