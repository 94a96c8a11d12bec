"""The ranks of a process group, which find each other when it is made and are connected by its first collective."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from treefold.errors import GroupError
from treefold.group.collectives import Collectives
from treefold.group.connecting import check_system, connect_link
from treefold.group.joining import host_name
from treefold.group.links.link import one_call
from treefold.group.reductions import Reductions
from treefold.group.rosters import StoreRoster
from treefold.torch.c10d.flat import Flat

_Result = TypeVar("_Result")


class Ranks:
    """One rank's end of the link that joins the ranks. One thread at a time calls its methods, but ``leave``."""

    def __init__(self, store: Any, rank: int, size: int, name: str, seconds: float) -> None:
        """Wait until all ranks have come.

        Raises:
            ConnectError: some have not, in so many seconds.
            SharedMemoryError: this system has no shared memory of the kind that is needed.

        """
        check_system()
        self.rank, self.size, self._seconds = rank, size, seconds
        self._roster = StoreRoster(store, rank, size, name)
        hosts = self._roster.exchange(host_name(rank).encode(), time.monotonic() + seconds)
        #: Whether all ranks share a host; and a name by which no other attempt to connect them knows itself.
        self.is_one_host, self.attempt = len(set(hosts)) == 1, self._roster.attempt
        self._error: BaseException | None = None
        self._is_over = False

    def connect(self) -> None:
        """Join the ranks, unless they are joined.

        Raises:
            GroupError: they are not, and will not be.

        """
        if self._error is not None or self._is_over:
            raise (self._error or GroupError.closed()).with_traceback(None)
        if hasattr(self, "_link"):
            return
        try:
            self.link = self._link = connect_link(self._roster, self._seconds, self._seconds)
        except Exception as error:
            self._error = error
            raise
        self.collectives = Collectives(self.link)
        self.reductions = Reductions(self.link, self.collectives.join)
        self._close_if_over()

    def _close_if_over(self) -> None:
        if self._is_over:  # another thread has left while this one connected
            self.link.close()

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

    def make(self, seconds: float, body: Callable[[Flat], _Result]) -> _Result:
        """Make a call, and write its results into tensors; a part of it may take ``seconds``.

        Raises:
            TreefoldError: one of its kinds, on all ranks.

        """
        self.connect()
        return self._made(seconds, body)

    @one_call
    def _made(self, seconds: float, body: Callable[[Flat], _Result]) -> _Result:
        self.link.timeout_seconds = seconds
        flat = Flat()
        result = body(flat)
        flat.finish()
        return result

    def leave(self, error: BaseException | None = None) -> None:
        """Leave the group, waiting for nobody; ``error``: because of what."""
        was_over, self._is_over = self._is_over, True
        if hasattr(self, "_link"):
            self.link.close(error)
        elif error is not None and not was_over:
            self._roster.give_up(error)  # the others may be waiting for this rank
