"""``connect``: from whatever knows the ranks to a group of them."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

from treefold.errors import ArgumentError, GroupError, SharedMemoryError
from treefold.errors.words import listed
from treefold.group import memory_limits
from treefold.group.descriptor_passing import Lifeline, close_all
from treefold.group.group import Group
from treefold.group.joining import Terms, join
from treefold.group.links.link import Link
from treefold.group.links.shared_memory import SharedMemoryLink
from treefold.group.native_core import HAS_SHARED_MEMORY
from treefold.group.plans import Layout
from treefold.group.rank_sources import find_ranks
from treefold.group.rendezvous import Client, Listener, Met, Waiting
from treefold.group.ticket import Ticket
from treefold.group.timeouts import checked_seconds

if HAS_SHARED_MEMORY:
    from treefold._native import HostGroup, create_segment

_GUARANTEES = ("replica_order", "per_plan", "engine")


def connect(
    source: Any = None,
    *,
    timeout_seconds: float = 600.0,
    connect_timeout_seconds: float = 60.0,
    guarantee: str = "replica_order",
    topology: Any = None,
) -> Group:
    """Join the other ranks, all of which call this, and return the group of them.

    When a group is closed or over, all ranks call this again, with the same source.
    Ranks of one host meet in shared memory; between hosts, values travel by gloo or MPI, whichever ``source`` is of.
    ``source``: a PyTorch ``ProcessGroup``, an mpi4py communicator, a ``Ticket`` or its text. None asks the environment:
    ``treefold run``, then PyTorch's initialised default group, ``torchrun``'s variables, and those of MPI's launchers.
    ``timeout_seconds``: how long a call waits for ranks that do not come. ``connect_timeout_seconds``: the same for
    this one. ``guarantee``: what results promise: ``"replica_order"``, the bits of one process; ``"per_plan"``, the
    same bits whenever the plan is the same, and fewer bytes between hosts with several replicas; ``"engine"``, what the
    engine's own all-reduce gives, which is refused over several hosts: engines carry values only. On one host all give
    the bits of one process. ``topology``: of the cluster, a ``Topology`` or the path of its file, with a device for
    each host in their order, or for each rank; without one all hosts are taken to be alike.

    Raises:
        ConnectError: nothing says who the others are, some did not come, or they do not fit together.
        SharedMemoryError: this system has no shared memory of the kind that is needed, or none left.

    """
    if guarantee not in _GUARANTEES:
        raise ArgumentError.connect(listed(_GUARANTEES), guarantee=guarantee)
    return Group(connect_link(source, timeout_seconds, connect_timeout_seconds, guarantee, topology))


def connect_link(
    source: Any,
    timeout_seconds: float,
    connect_timeout_seconds: float,
    guarantee: str = _GUARANTEES[0],
    topology: Any = None,
    *,
    is_one_host: bool = False,
) -> Link:
    """Join the other ranks, as ``connect`` does, and return this rank's end of what links them.

    ``source``: also a ``Roster``. ``is_one_host``: whether ranks of several hosts are refused.

    Raises:
        ConnectError: some did not come, or they do not fit together.
        SharedMemoryError: this system has no shared memory of the kind that is needed, or none left.

    """
    checked_seconds("connect", timeout_seconds=timeout_seconds)
    seconds = checked_seconds("connect", connect_timeout_seconds=connect_timeout_seconds)
    if not HAS_SHARED_MEMORY:
        system = f"{sys.platform} has no memory that can be shared and sealed without a name"
        raise SharedMemoryError.unsupported(system if sys.platform != "linux" else "the native core is not installed")
    agreed = _agreed(guarantee)  # before the others can find this rank: it may refuse what is set here
    deadline = time.monotonic() + seconds
    ranks = find_ranks(source, seconds)
    if isinstance(ranks, Ticket):
        return meet(ranks, agreed, timeout_seconds, Waiting(deadline, seconds, is_kept=True))
    terms = Terms(guarantee, topology, memory_limits.result_bytes(), seconds, timeout_seconds, is_one_host)
    return join(ranks, terms, deadline, lambda ticket, waiting: meet(ticket, agreed, timeout_seconds, waiting))


def meet(ticket: Ticket, agreed: dict[str, object], timeout_seconds: float, waiting: Waiting) -> SharedMemoryLink:
    """Join the other ranks of a host, which all have tickets of one kind."""
    try:
        return _meet_others(ticket, agreed, timeout_seconds, waiting)
    except GroupError:
        raise
    except OSError as error:  # no descriptor for the first socket, for instance
        if error.errno is None:  # not the system's: a handler of the user's has raised it
            raise
        raise SharedMemoryError.of_system(error) from None


def _meet_others(
    ticket: Ticket, agreed: dict[str, object], timeout_seconds: float, waiting: Waiting
) -> SharedMemoryLink:
    side = Listener(ticket, agreed, waiting) if ticket.rank == 0 else Client(ticket, agreed, waiting)
    try:
        met = _gathered(side, ticket) if isinstance(side, Listener) else side.join()
        link = _link(ticket, met, side.lifeline, str(agreed["guarantee"]), timeout_seconds)
        _settle(link, side.settle)
    except BaseException as error:
        side.give_up(error)
        raise
    finally:
        side.close()
    return link


def _gathered(listener: Listener, ticket: Ticket) -> Met:
    """Wait for the other ranks, and share memory with them."""
    listener.gather()
    try:
        fd = create_segment(ticket.size, *_sizes(ticket))
    except OSError as error:
        raise SharedMemoryError.of_system(error) from None
    return listener.share(fd)


def _settle(link: SharedMemoryLink, settle: Callable[[], None]) -> None:
    try:
        settle()
    except BaseException as error:
        link.close(error)  # others may have heard that the group has formed
        raise


def _link(ticket: Ticket, met: Met, lifeline: Lifeline, guarantee: str, timeout_seconds: float) -> SharedMemoryLink:
    """Map the shared memory."""
    peers = list(zip(met.lifelines, met.pids, strict=True))
    spins = ticket.size <= memory_limits.usable_cores()
    try:
        native = HostGroup(met.fd, ticket.rank, ticket.size, *_sizes(ticket), peers, spins)
    except OSError as error:
        close_all(met.lifelines)
        raise SharedMemoryError.of_system(error) from None
    finally:
        os.close(met.fd)
    layout = Layout((tuple(range(ticket.size)),), guarantee)
    return SharedMemoryLink(
        native, lifeline, layout, ticket.rank, result_bytes=_sizes(ticket)[0], timeout_seconds=timeout_seconds
    )


def _sizes(ticket: Ticket) -> tuple[int, int]:
    return memory_limits.result_bytes(), memory_limits.arena_bytes(ticket.size)


def _agreed(guarantee: str) -> dict[str, object]:
    """Return what must be the same on all ranks."""
    return {
        "treefold": sys.modules["treefold"].__version__,
        "byte order": sys.byteorder,
        "guarantee": guarantee,
        "bytes for results": memory_limits.result_bytes(),
        "memory": memory_limits.arena_bytes(1),
    }
