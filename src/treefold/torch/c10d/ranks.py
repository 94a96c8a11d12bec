"""The ranks of a process group, which are connected when it is made."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from treefold.group.bootstrap.connecting import connect_link
from treefold.group.bootstrap.rank_sources import StoreRoster
from treefold.group.collectives import Collectives
from treefold.group.reductions import Reductions
from treefold.group.transport.link import one_call
from treefold.torch.c10d.flat import Flat

_Result = TypeVar("_Result")


class Ranks:
    """One rank's end of the link that joins the ranks. One thread at a time calls its methods, but ``leave``."""

    def __init__(self, store: Any, rank: int, size: int, name: str, seconds: float) -> None:
        """Wait until all ranks have come, and join them.

        Also where the group may never have a collective: until ranks are joined, none sees that another has ended.

        Raises:
            ConnectError: some have not come in so many seconds, or one has failed.
            SharedMemoryError: this system has no shared memory of the kind that is needed, or none left.

        """
        self.rank, self.size = rank, size
        roster = StoreRoster(store, rank, size, name)
        self.link = self._link = connect_link(roster, seconds, seconds)
        self.collectives = Collectives(self.link)
        self.reductions = Reductions(self.link, self.collectives.join)
        #: Whether all ranks share a host; and a name by which no other attempt to connect them knows itself.
        self.is_one_host, self.attempt = len(self.link.layout.hosts) == 1, roster.attempt

    def own_cores(self) -> set[int]:
        """Return the cores for a thread that makes this rank's calls beside its computing; none: whichever.

        Where computing takes all cores, Linux often puts the threads of two ranks on one of them, where these wait for
        each other, while another core is idle. A share of the cores for each rank prevents that. Over hosts there are
        no shares: the threads of treefold's core, which such calls start, would inherit them.
        """
        cores = sorted(os.sched_getaffinity(0))
        if not self.is_one_host or self.size * torch.get_num_threads() < len(cores):
            return set()
        begin, end = (place * len(cores) // self.size for place in (self.rank, self.rank + 1))
        return set(cores[begin : max(begin + 1, end)])

    @one_call
    def make(self, seconds: float, body: Callable[[Flat], _Result]) -> _Result:
        """Make a call, and write its results into tensors; a part of it may take ``seconds``.

        Raises:
            TreefoldError: one of its kinds, on all ranks.

        """
        self.link.timeout_seconds = seconds
        flat = Flat()
        result = body(flat)
        flat.finish()
        return result

    def leave(self, error: BaseException | None = None) -> None:
        """Leave the group, waiting for nobody; ``error``: because of what."""
        self.link.close(error)
