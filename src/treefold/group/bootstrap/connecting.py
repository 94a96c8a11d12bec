"""``connect``: from whatever knows the ranks to a group of them.

Ranks of one host meet in its memory, and a channel joins the hosts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from treefold.compiled import HAS_SHARED_MEMORY
from treefold.engines.interface import Channel
from treefold.errors import ArgumentError, ConnectError, SharedMemoryError, TreefoldError
from treefold.errors.words import listed, short
from treefold.group.bootstrap import memory_limits
from treefold.group.bootstrap.rank_sources import Bootstrap, ChannelBootstrap, StoreBootstrap, find_ranks, host_key
from treefold.group.bootstrap.rendezvous import Client, HostAttempt, Listener, Met, Ticket
from treefold.group.group import Group
from treefold.group.plans import RankLayout
from treefold.group.transport.descriptor_passing import Lifeline, close_all
from treefold.group.transport.hosts import ChannelLink
from treefold.group.transport.link import GroupLink, checked_seconds
from treefold.group.transport.shared_memory import SharedMemoryLink
from treefold.keyed import grouped
from treefold.observing import LOG

if TYPE_CHECKING:
    from treefold.topology.for_groups import Cluster
if HAS_SHARED_MEMORY:
    from treefold._native import HostGroup, create_segment


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
    """Join the other ranks, and return the group of all of them. Every rank calls it.

    Ranks of one host meet in shared memory. Between hosts values travel by gloo or MPI, depending on ``source``. When a
    group is closed or broken, all ranks call this again, with the same source.

    Args:
        source: A PyTorch ``ProcessGroup``, an mpi4py communicator, a ``Ticket`` or its text. None looks in the
            environment, in this order: the ticket of ``treefold run``, PyTorch's initialised default group, the
            variables of ``torchrun``, those of MPI's launchers.
        timeout_seconds: How long a call of the group waits for ranks that do not come, in seconds; 600 by default.
        connect_timeout_seconds: How long ``connect`` itself waits for them, in seconds; 60 by default.
        guarantee: The promise of sums and means. ``"exact"``, the default: the exact value, rounded once, on any number
            of ranks and hosts. ``"per_plan"``: the same bits whenever the plan is the same, and fewer bytes between
            hosts with several replicas. On one host both are exact.
        topology: The cluster: a ``Topology`` or the path of its file, with one device for each host, in the order of
            the hosts, or for each rank. None: all hosts are alike.
        store: In place of a source, a PyTorch store that all ranks share. Each set of ranks needs a store of its own,
            such as a ``PrefixStore``.
        rank: The number of this rank in ``store``, from 0.
        size: The number of ranks in ``store``.

    Returns:
        The group, with its rank and size. Close it, or use it in a ``with`` block.

    Raises:
        ArgumentError: arguments do not go together.
        ConnectError: the other ranks cannot be found, some did not come, or they do not fit together.
        SharedMemoryError: this system has no shared memory of the kind that is needed, or none left.

    """
    if guarantee not in _GUARANTEES:
        raise ArgumentError.connect(listed(_GUARANTEES), guarantee=guarantee)
    if store is not None or rank is not None or size is not None:
        source = _bootstrap(source, store, rank, size)
    return Group(connect_link(source, timeout_seconds, connect_timeout_seconds, guarantee, topology))


def _bootstrap(source: Any, store: Any, rank: Any, size: Any) -> StoreBootstrap:
    given = {"store": store, "rank": rank, "size": size}
    if source is not None or None in given.values():
        missing = listed([name for name, value in given.items() if value is None], quote=False)
        raise ArgumentError(
            f"connect() got {f'no {missing}' if missing else 'a source beside a store'}. Give store=, rank= and size= "
            "together, without a source."
        )
    if type(rank) is not int or type(size) is not int or not 0 <= rank < size:
        raise ArgumentError(
            f"connect() got rank={short(rank)} and size={short(size)}. It takes whole numbers: a size of 1 or more, "
            "and a rank from 0 to size - 1."
        )
    return StoreBootstrap(store, rank, size, "treefold")


def connect_link(
    source: Any,
    timeout_seconds: float,
    connect_timeout_seconds: float,
    guarantee: str = _GUARANTEES[0],
    topology: Any = None,
) -> GroupLink:
    """Join the other ranks, as ``connect`` does, and return this rank's link to them.

    ``source`` may be a ``Bootstrap``, too.

    Raises:
        ConnectError: some did not come, or they do not fit together.
        SharedMemoryError: this system has no shared memory of the kind that is needed, or none left.

    """
    checked_seconds("connect", timeout_seconds=timeout_seconds)
    seconds = checked_seconds("connect", connect_timeout_seconds=connect_timeout_seconds)
    check_system()
    # Before the others can find this rank: what is set for its memory may be refused.
    settings = GroupSettings(guarantee, topology, memory_limits.result_bytes(), seconds, timeout_seconds)
    deadline = time.monotonic() + seconds
    ranks = find_ranks(source, seconds)
    if isinstance(ranks, Ticket):
        link: GroupLink = meet(ranks, settings, HostAttempt(deadline, seconds, is_kept=True))
    else:
        link = join(ranks, settings, deadline)
    LOG.info("rank %d of hosts %s, guarantee %s", link.rank, link.layout.hosts, guarantee)
    return link


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


#: The most characters of an error that a rank sends to the others.
_MOST_WORDS = 1000


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """The settings of a group: its guarantee, its cluster if it is known, its bytes for results, deadlines."""

    guarantee: str
    topology: Any
    result_bytes: int
    connect_seconds: float
    timeout_seconds: float


def join(bootstrap: Bootstrap, settings: GroupSettings, deadline: float) -> GroupLink:
    """Find out which ranks share a host, and join all of them by a moment of the monotonic clock.

    Raises:
        ConnectError: some did not come, or they do not fit together.

    """
    # Before the bootstrap was made, for which PyTorch and MPI may take seconds.
    bootstrap.began = deadline - settings.connect_seconds
    try:
        return _joined(bootstrap, settings, deadline)
    except BaseException as error:
        bootstrap.give_up(error)
        raise


def _joined(bootstrap: Bootstrap, settings: GroupSettings, deadline: float) -> GroupLink:
    try:
        cluster, refusal = _read(settings.topology), None
    except TreefoldError as error:  # the others wait for this rank's words
        cluster, refusal = None, error
    own = {
        **_agreed(settings),
        "size": bootstrap.size,
        "topology": None if cluster is None else cluster.digest,
        "host": host_key() or f"rank {bootstrap.rank}",  # the same for all ranks of this host, and for no other
        "bytes for results": settings.result_bytes,
        "refusal": str(refusal or "")[:_MOST_WORDS],
    }
    said = [json.loads(one) for one in bootstrap.exchange(json.dumps(own).encode(), deadline)]
    if refusal is not None:
        raise refusal
    _check(said)
    hosts = _hosts([one["host"] for one in said])
    shares = None if cluster is None else cluster.shares(hosts, settings.guarantee)
    layout = RankLayout(hosts, settings.guarantee, shares)
    attempt = HostAttempt(deadline, settings.connect_seconds, layout.host_of(bootstrap.rank))
    local = _meet_on_host(bootstrap, settings, attempt)
    if len(hosts) == 1:
        bootstrap.close()
        return local or meet(Ticket.read(Ticket.for_ranks(1)[0]), settings, attempt)

    def rejoin(channel: Channel, seconds: float) -> GroupLink:
        # A cluster's topology names the ranks that there were; hosts that are left fold equal parts.
        rest = dataclasses.replace(settings, topology=None, connect_seconds=seconds)
        return join(ChannelBootstrap(channel), rest, time.monotonic() + seconds)

    try:
        rounds = bootstrap.open(deadline)
        LOG.info("engine between hosts: %s", type(rounds.channel).__name__)
        return ChannelLink(
            rounds,
            layout,
            local,
            rejoin,
            result_bytes=min(one["bytes for results"] for one in said),
            timeout_seconds=settings.timeout_seconds,
        )
    except BaseException as error:
        if local is not None:
            local.close(error)
        raise


def _agreed(settings: GroupSettings) -> dict[str, object]:
    """Return what must be the same on all ranks, wherever they are."""
    return {
        "treefold": sys.modules["treefold"].__version__,
        "byte order": sys.byteorder,
        "guarantee": settings.guarantee,
    }


def _meet_on_host(bootstrap: Bootstrap, settings: GroupSettings, attempt: HostAttempt) -> SharedMemoryLink | None:
    """Join the ranks of this rank's host; None if it is alone there."""
    own = attempt.numbers
    with contextlib.ExitStack() as made:
        text = ""
        if len(own) > 1 and bootstrap.rank == own[0]:
            text = Ticket.for_ranks(len(own))[0]
            made.callback(Ticket.read(text).discard)  # the listener does that as well, if it starts
        tickets = bootstrap.exchange(text.encode(), attempt.deadline)
        if len(own) == 1:
            return None
        first = Ticket.read(tickets[own[0]].decode())
        ticket = Ticket(first.folder, first.token, own.index(bootstrap.rank), len(own))
        try:
            return meet(ticket, settings, attempt)
        except BaseException:
            ticket.discard()  # the first rank, which does that else, may have been killed
            raise


def meet(ticket: Ticket, settings: GroupSettings, attempt: HostAttempt) -> SharedMemoryLink:
    """Join the other ranks of a host, which all have tickets of one kind.

    Raises:
        ConnectError: some did not come, or they do not fit together.
        SharedMemoryError: the system has no memory or no descriptors left.

    """
    sizes = settings.result_bytes, memory_limits.arena_bytes(ticket.size)
    agreed = {**_agreed(settings), "bytes for results": sizes[0], "memory": memory_limits.arena_bytes(1)}
    with _in_words(), contextlib.ExitStack() as ends:
        side = (Client if ticket.rank else Listener)(ticket, agreed, attempt)
        ends.callback(side.close)
        try:
            with _in_words():  # before the others are told
                lifeline = Lifeline()
                ends.callback(os.close, lifeline.other_end)
                met = side.meet(lifeline.other_end, lambda: create_segment(ticket.size, *sizes))
                link = _link(met, ticket, settings, sizes, lifeline)
                try:
                    side.settle()
                except BaseException as error:
                    link.close(error)  # others may have heard that the group has formed
                    raise
        except BaseException as error:
            side.give_up(error)
            raise
        return link


def _link(
    met: Met, ticket: Ticket, settings: GroupSettings, sizes: tuple[int, int], lifeline: Lifeline
) -> SharedMemoryLink:
    """Map the shared memory."""
    peers = list(zip(met.lifelines, met.pids, strict=True))
    spins = ticket.size <= memory_limits.usable_cores()
    try:
        native = HostGroup(met.fd, ticket.rank, ticket.size, *sizes, peers, spins)
    except OSError:
        close_all(met.lifelines)
        raise
    finally:
        os.close(met.fd)
    layout = RankLayout((tuple(range(ticket.size)),), settings.guarantee)
    return SharedMemoryLink(
        native, lifeline, layout, ticket.rank, result_bytes=sizes[0], timeout_seconds=settings.timeout_seconds
    )


@contextlib.contextmanager
def _in_words() -> Iterator[None]:
    """Raise as a SharedMemoryError what the system refuses."""
    try:
        yield
    except OSError as error:
        if error.errno is None:  # not the system's: treefold's own, or raised by a handler of the user's
            raise
        raise SharedMemoryError.of_system(error) from None


def _check(said: Sequence[dict[str, Any]]) -> None:
    for rank, other in enumerate(said):
        if other["refusal"]:
            raise ConnectError.announced(rank, other["refusal"], ())
        for name in ("size", "treefold", "byte order", "guarantee", "topology"):
            if other[name] != said[0][name]:
                raise ConnectError.differs(name, rank, other[name], said[0][name])


def _hosts(keys: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Return the ranks of each host, hosts by their first rank."""
    return tuple(map(tuple, grouped((key, rank) for rank, key in enumerate(keys)).values()))


def _read(topology: Any) -> Cluster | None:
    if topology is None:
        return None
    from treefold.topology.for_groups import read_cluster  # noqa: PLC0415 - groups without it do not load the wing

    return read_cluster(topology)
