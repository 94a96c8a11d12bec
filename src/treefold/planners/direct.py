"""The direct method, for ranks on several hosts: the owner of a slice gets all contributions and sends the result out.

Between hosts a slice travels once per contribution on another host, or, if each host folds its own first, once per
other host. Its result travels once per other host. Within a host, ranks pass values on in memory that they share.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from fractions import Fraction

from treefold.devices import rank_of
from treefold.errors import PlanError
from treefold.errors.words import some
from treefold.plan.ir import Range, Role
from treefold.planners.builder import LeafWork, PlanBuilder
from treefold.planners.method import Method
from treefold.planners.packing import Pack

_PACK, _HOME, _FOLD, _UP, _COMBINE, _ACROSS, _DOWN, _UNPACK = range(8)

#: Exact sums travel in place of more contributions than these: they are as large as two.
MOST_AS_THEY_ARE = 2

Hosts = Sequence[Sequence[int]]  # the ranks of each host, in ascending order


def direct(
    hosts: Hosts,
    shares: Sequence[Fraction | float] | None = None,
    *,
    is_folded_per_host: bool = False,
    adds_exactly: bool = False,
    devices: Sequence[str] | None = None,
) -> Method:
    """Return the method in which every rank owns a slice, folds it and sends the result out: 2 hops between hosts.

    All contributions meet at the owner unfolded, in replica order: the bits of one pass.

    Args:
        hosts: The ranks of each host, in ascending order.
        shares: Each host's share of the values, in any unit; None: equal shares. The ranks of a host divide its share
            equally.
        is_folded_per_host: Each host first folds its own contributions and sends one partial fold in their place.
        adds_exactly: A host of more than two contributions sends their exact sum, which is as large as two.
        devices: The device of each rank, on which it folds and gets results; None: ``"0/cpu:0"``, ``"1/cpu:0"`` … A
            source on another device belongs to the rank in its name, as ``"2/cpu:1"`` does to rank 2.

    Raises:
        PlanError: The ranks are not 0, 1, 2 …, each on one host, or a share is negative, missing, or all are 0.

    """
    host_of = {rank: host for host, ranks in enumerate(hosts) for rank in ranks}
    count = sum(map(len, hosts))
    if sorted(host_of) != list(range(count)) or not all(hosts) or not hosts:
        raise PlanError.hosts(hosts)
    wanted = [Fraction(share) for share in ([1] * len(hosts) if shares is None else shares)]
    if len(wanted) != len(hosts) or min(wanted) < 0 or not any(wanted):
        raise PlanError.shares(len(hosts), wanted)
    # Equal parts within a host: its ranks share one network port, and carry the same load over it.
    slices = tuple(wanted[host_of[rank]] / len(hosts[host_of[rank]]) for rank in range(count))
    folded = is_folded_per_host and len(hosts) > 1  # alone, a host would fold twice
    own = tuple(f"{rank}/cpu:0" for rank in range(count)) if devices is None else tuple(devices)

    def add_pack(builder: PlanBuilder, pack: Pack, owner: int) -> None:
        add_direct(builder, pack, owner, hosts, devices=own, is_folded_per_host=folded, adds_exactly=adds_exactly)

    words = ", folded on each host first" if folded else ", exact sums of each host" if adds_exactly else ""
    return Method(slices, add_pack, f"direct{words}")


def lanes(hosts: Hosts, rank: int) -> tuple[int, ...]:
    """Return the rank of each host that exchanges values with a rank: the one with the same index on its host.

    A rank is its own lane on its own host. In a host with fewer ranks, indices wrap around. Each rank of a host thus
    carries its part of the traffic between hosts, and ranks of one index can use one rail.

    >>> lanes(((0, 1), (2, 3)), 3), lanes(((0, 1, 2), (3,), (4, 5)), 2)
    ((1, 3), (2, 3, 4))
    """
    place = next(ranks.index(rank) for ranks in hosts if rank in ranks)
    return tuple(ranks[place % len(ranks)] for ranks in hosts)


def add_direct(
    builder: PlanBuilder,
    pack: Pack,
    owner: int,
    hosts: Hosts,
    *,
    devices: Sequence[str],
    is_folded_per_host: bool,
    adds_exactly: bool = False,
) -> None:
    """Reduce a pack on the rank ``owner`` and send the result to every rank with a destination among ``devices``.

    Copies of the pack between hosts: one for each contribution on another host, or, with ``is_folded_per_host``, for
    each other host; and one for each other host with destinations.

    Raises:
        PlanError: A source or a destination belongs to none of the ranks.

    """
    number = builder.new_pack()
    work = builder.work[pack.fragments[0].leaf]
    meeting, ends = lanes(hosts, owner), set(work.destinations)
    held: dict[int, list[tuple[int, Range]]] = defaultdict(list)  # by rank: replica, contribution
    for replica, rank in enumerate(_ranks_of_sources(work, devices)):
        held[rank].append((replica, builder.packed_input(pack, number, replica, _PACK)))
    arrived = []
    for ranks, top in zip(hosts, meeting, strict=True):
        own = [item for rank in ranks for item in held[rank]]
        # The owner takes those of its own host as they are.
        is_added = adds_exactly and top != owner and len(own) > MOST_AS_THEY_ARE
        if is_added or (is_folded_per_host and own):
            own = [(first, builder.send(part, devices[top], number, _HOME)) for first, part in own]
            # One partial fold in place of several contributions. The price, unless it is exact: the bits now depend on
            # which ranks share a host.
            own = [builder.partial_fold(own, number, _FOLD, Role.EXACT if is_added else Role.PARTIAL)]
        arrived += [(first, builder.send(part, devices[owner], number, _UP)) for first, part in own]
    # Hosts may hold ranks in any order; the fold is always in replica order.
    in_order = [part for _, part in sorted(arrived, key=lambda item: item[0])]
    result = builder.combine(in_order, builder.landing(pack, devices[owner]), number, _COMBINE, final=True)
    for ranks, top in zip(hosts, meeting, strict=True):
        # Once per host over the network, then through memory: a port carries the result once for all ranks behind it.
        below = [devices[rank] for rank in ranks if rank != top and devices[rank] in ends]
        if top != owner and devices[top] not in ends and not below:
            continue  # no rank of this host wants the result
        here = result if top == owner else builder.deliver(result, pack, devices[top], number, _ACROSS)
        builder.unpack(here, pack, number, _UNPACK)
        for device in below:
            builder.unpack(builder.deliver(here, pack, device, number, _DOWN), pack, number, _UNPACK)


def _ranks_of_sources(work: LeafWork, devices: Sequence[str]) -> list[int]:
    home = {device: rank for rank, device in enumerate(devices)}
    strangers = [device for device in work.destinations if device not in home]
    if strangers:
        raise PlanError(f"A result is to go to {strangers[0]}, and ranks have theirs on {some(devices)}.")
    found = []
    for device in work.sources:
        rank = home.get(device, rank_of(device))
        if rank is None or rank >= len(devices):
            raise PlanError.of_no_rank(device, len(devices))
        found.append(rank)
    return found
