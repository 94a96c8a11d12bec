"""Ranks of a roster become a group: those of one host meet in its memory, and a channel joins the hosts."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from treefold.engines.interface import Channel
from treefold.errors import ConnectError, TopologyError, TreefoldError
from treefold.group.links.hosts import ChannelLink
from treefold.group.links.link import Link
from treefold.group.links.shared_memory import SharedMemoryLink
from treefold.group.plans import Layout
from treefold.group.rank_sources import host_key
from treefold.group.rendezvous import Waiting
from treefold.group.rosters import ChannelRoster, Roster
from treefold.group.ticket import Ticket
from treefold.planners.host_shares import host_shares
from treefold.topology import Topology
from treefold.topology.load import load_topology

#: Of what a rank says of an error, in characters.
_MOST_WORDS = 1000
#: Joins the ranks of one host.
Meet = Callable[[Ticket, Waiting], SharedMemoryLink]


@dataclass(frozen=True, slots=True)
class Terms:
    """What a group over hosts is to be: its guarantee, its cluster if it is known, its bytes for results, deadlines.

    ``is_one_host``: whether ranks of several hosts are refused.
    """

    guarantee: str
    topology: Any
    result_bytes: int
    connect_seconds: float
    timeout_seconds: float
    is_one_host: bool = False


def join(roster: Roster, terms: Terms, deadline: float, meet: Meet) -> Link:
    """Find out which ranks share a host, and join all of them by a moment of the monotonic clock.

    Raises:
        ConnectError: some did not come, or they do not fit together.

    """
    roster.began = deadline - terms.connect_seconds  # before the roster: PyTorch and MPI may take seconds to make one
    try:
        return _joined(roster, terms, deadline, meet)
    except BaseException as error:
        roster.give_up(error)
        raise


def _joined(roster: Roster, terms: Terms, deadline: float, meet: Meet) -> Link:
    try:
        cluster, refusal = _read(terms.topology), None
    except TreefoldError as error:  # the others wait for this rank's words
        cluster, refusal = None, error
    own = {**_own(roster, terms, cluster), "refusal": str(refusal or "")[:_MOST_WORDS]}
    said = [json.loads(one) for one in roster.exchange(json.dumps(own).encode(), deadline)]
    if refusal is not None:
        raise refusal
    _check(said)
    hosts = _hosts([one["host"] for one in said])
    if len(hosts) > 1 and terms.is_one_host:
        raise ConnectError.other_host(hosts[1][0])
    shares = None if cluster is None else _shares(cluster, hosts, terms.guarantee)
    layout = Layout(hosts, terms.guarantee, shares)
    local = _meet_on_host(roster, layout, Waiting(deadline, terms.connect_seconds), meet)
    if len(hosts) == 1:
        roster.close()
        return local or meet(Ticket.read(Ticket.for_ranks(1)[0]), Waiting(deadline, terms.connect_seconds))
    # A cluster's topology names the ranks that there were; hosts that are left fold equal parts.
    rest = dataclasses.replace(terms, topology=None)
    try:
        return ChannelLink(
            roster.open(deadline),
            layout,
            local,
            lambda channel, left: _rejoin(channel, dataclasses.replace(rest, connect_seconds=left), meet),
            result_bytes=min(one["bytes for results"] for one in said),
            timeout_seconds=terms.timeout_seconds,
        )
    except BaseException as error:
        if local is not None:
            local.close(error)
        raise


def _rejoin(channel: Channel, terms: Terms, meet: Meet) -> Link:
    """Join the ranks of a channel that go on without some."""
    return join(ChannelRoster(channel), terms, time.monotonic() + terms.connect_seconds, meet)


def _own(roster: Roster, terms: Terms, cluster: Topology | None) -> dict[str, Any]:
    """Return what the other ranks are told of this one."""
    return {
        "size": roster.size,
        "treefold": sys.modules["treefold"].__version__,
        "byte order": sys.byteorder,
        "guarantee": terms.guarantee,
        "topology": None if cluster is None else _digest(cluster),
        "host": host_key() or f"rank {roster.rank}",
        "bytes for results": terms.result_bytes,
    }


def _meet_on_host(roster: Roster, layout: Layout, waiting: Waiting, meet: Meet) -> SharedMemoryLink | None:
    """Join the ranks of this rank's host; None if it is alone there."""
    own = layout.host_of(roster.rank)
    with contextlib.ExitStack() as made:
        text = ""
        if len(own) > 1 and roster.rank == own[0]:
            text = Ticket.for_ranks(len(own))[0]
            made.callback(Ticket.read(text).discard)  # who listens does that as well, if it comes to that
        tickets = roster.exchange(text.encode(), waiting.deadline)
        if len(own) == 1:
            return None
        first = Ticket.read(tickets[own[0]].decode())
        ticket = Ticket(first.folder, first.token, own.index(roster.rank), len(own))
        try:
            return meet(ticket, Waiting(waiting.deadline, waiting.seconds, own))
        except BaseException:
            ticket.discard()  # the first rank, which does that else, may have been killed
            raise


def _check(said: Sequence[dict[str, Any]]) -> None:
    for rank, other in enumerate(said):
        if other["refusal"]:
            raise ConnectError.told(rank, other["refusal"], ())
        for name in ("size", "treefold", "byte order", "guarantee", "topology"):
            if other[name] != said[0][name]:
                raise ConnectError.differs(name, rank, other[name], said[0][name])


def _hosts(keys: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Return the ranks of each host, hosts by their first rank."""
    ranks: dict[str, list[int]] = {}
    for rank, key in enumerate(keys):
        ranks.setdefault(key, []).append(rank)
    return tuple(map(tuple, ranks.values()))


def _read(topology: Any) -> Topology | None:
    return topology if topology is None or isinstance(topology, Topology) else load_topology(topology)


def _shares(cluster: Topology, hosts: Sequence[Sequence[int]], guarantee: str) -> tuple[Fraction, ...]:
    """Return what each host should fold, given a cluster with a device for each rank, or for each host.

    Raises:
        TopologyError: it has another number of devices.

    """
    count = sum(map(len, hosts))
    if len(cluster.devices) == count:
        devices = [[cluster.devices[rank] for rank in ranks] for ranks in hosts]
    elif len(cluster.devices) == len(hosts):
        devices = [[device] for device in cluster.devices]
    else:
        raise TopologyError.of_ranks(len(cluster.devices), count, len(hosts))
    contributions = [1 if guarantee == "per_plan" else len(ranks) for ranks in hosts]
    return host_shares(cluster, devices, contributions)


def _digest(cluster: Topology) -> str:
    text = json.dumps(cluster.to_json(), sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
