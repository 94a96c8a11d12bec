"""``connect``: from whatever knows the ranks to a group of them."""

from __future__ import annotations

import sys
import time
from typing import Any

from treefold.errors import ArgumentError, SharedMemoryError
from treefold.errors.words import listed, short
from treefold.group.bootstrap import memory_limits
from treefold.group.bootstrap.joining import Terms, join, meet
from treefold.group.bootstrap.rank_sources import find_ranks
from treefold.group.bootstrap.rendezvous import Waiting
from treefold.group.bootstrap.rosters import StoreRoster
from treefold.group.bootstrap.ticket import Ticket
from treefold.group.group import Group
from treefold.group.transport.link import Link
from treefold.group.transport.native_core import HAS_SHARED_MEMORY
from treefold.group.transport.timeouts import checked_seconds

_GUARANTEES = ("exact", "per_plan")


def connect(
    source: Any = None,
    *,
    timeout_seconds: float = 600.0,
    connect_timeout_seconds: float = 60.0,
    guarantee: str = "exact",
    topology: Any = None,
    store: Any = None,
    rank: int | None = None,
    size: int | None = None,
) -> Group:
    """Join the other ranks, all of which call this, and return the group of them.

    When a group is closed or over, all ranks call this again, with the same source.
    Ranks of one host meet in shared memory; between hosts, values travel by gloo or MPI, whichever ``source`` is of.
    ``source``: a PyTorch ``ProcessGroup``, an mpi4py communicator, a ``Ticket`` or its text. None asks the environment:
    ``treefold run``, then PyTorch's initialised default group, ``torchrun``'s variables, and those of MPI's launchers.
    ``timeout_seconds``: how long a call waits for ranks that do not come. ``connect_timeout_seconds``: the same for
    this one. ``guarantee``: what sums and means promise: ``"exact"``, the exact value, rounded once, however many ranks
    and hosts there are; ``"per_plan"``, the same bits whenever the plan is the same, and fewer bytes between hosts with
    several replicas. On one host both are exact. ``topology``: of the cluster, a ``Topology`` or the path of its file,
    with a device for each host in their order, or for each rank; without one all hosts are taken to be alike.
    ``store``, ``rank``, ``size``: in place of a source, one of PyTorch's stores that all ranks share, this rank's
    number in it, and how many there are. Groups of other ranks need a store of their own: a ``PrefixStore``.

    Raises:
        ArgumentError: arguments do not go together.
        ConnectError: nothing says who the others are, some did not come, or they do not fit together.
        SharedMemoryError: this system has no shared memory of the kind that is needed, or none left.

    """
    if guarantee not in _GUARANTEES:
        raise ArgumentError.connect(listed(_GUARANTEES), guarantee=guarantee)
    if store is not None or rank is not None or size is not None:
        source = _roster(source, store, rank, size)
    return Group(connect_link(source, timeout_seconds, connect_timeout_seconds, guarantee, topology))


def _roster(source: Any, store: Any, rank: Any, size: Any) -> StoreRoster:
    given = {"store": store, "rank": rank, "size": size}
    if source is not None or None in given.values():
        raise ArgumentError.store_of_ranks(**given)
    if type(rank) is not int or type(size) is not int or not 0 <= rank < size:
        raise ArgumentError(
            f"connect() got rank={short(rank)} and size={short(size)}. It takes whole numbers: a size of 1 or more, "
            "and a rank from 0 to size - 1."
        )
    return StoreRoster(store, rank, size, "treefold")


def connect_link(
    source: Any,
    timeout_seconds: float,
    connect_timeout_seconds: float,
    guarantee: str = _GUARANTEES[0],
    topology: Any = None,
) -> Link:
    """Join the other ranks, as ``connect`` does, and return this rank's end of what links them.

    ``source``: also a ``Roster``.

    Raises:
        ConnectError: some did not come, or they do not fit together.
        SharedMemoryError: this system has no shared memory of the kind that is needed, or none left.

    """
    checked_seconds("connect", timeout_seconds=timeout_seconds)
    seconds = checked_seconds("connect", connect_timeout_seconds=connect_timeout_seconds)
    check_system()
    # Before the others can find this rank: what is set for its memory may be refused.
    terms = Terms(guarantee, topology, memory_limits.result_bytes(), seconds, timeout_seconds)
    deadline = time.monotonic() + seconds
    ranks = find_ranks(source, seconds)
    if isinstance(ranks, Ticket):
        return meet(ranks, terms, Waiting(deadline, seconds, is_kept=True))
    return join(ranks, terms, deadline)


def check_system() -> None:
    """Refuse a system on which ranks cannot meet.

    Raises:
        SharedMemoryError: it has no shared memory of the kind that is needed.

    """
    if not HAS_SHARED_MEMORY:
        why = f"{sys.platform} has no memory that can be shared and sealed without a name"
        if sys.platform == "linux":
            why = "the native core is not installed"
        raise SharedMemoryError(
            f"Ranks of one host meet in shared memory, and {why}. Everything within one process works here; between "
            "processes use Linux."
        )
