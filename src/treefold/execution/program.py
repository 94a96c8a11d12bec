"""A movement divided among the ranks of a group: what each rank computes, sends and receives. No arrays.

Values are sent between hosts only. Within a host, ranks read each other's memory, so only the receiver takes part in a
copy.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from treefold.devices import rank_of
from treefold.errors import PlanError
from treefold.plan.ir import Action, Buffer, Copy, Range
from treefold.plan.movement import Movement
from treefold.planners.direct import Hosts


@dataclass(frozen=True, slots=True)
class Send:
    """Send a copy's source to rank ``peer``; ``number``: of the copy, among all copies between hosts in plan order."""

    action: Copy
    number: int
    peer: int


@dataclass(frozen=True, slots=True)
class Receive:
    """Receive a copy's target from rank ``peer``; ``number``: as in the ``Send`` of that rank."""

    action: Copy
    number: int
    peer: int


@dataclass(frozen=True, slots=True)
class Perform:
    """Perform an action on this rank's own devices."""

    action: Action


@dataclass(frozen=True, slots=True)
class Take:
    """Copy a range of another rank of this host to this rank, through memory that both share."""

    action: Copy


Part = Send | Receive | Perform | Take


@dataclass(frozen=True, slots=True)
class Program:
    """One rank's parts in each step of a movement; a step may be empty.

    The parts of a step may run at once. Sends come first, in the order in which they should begin: every rank begins
    with the host after its own, so that no port receives from all hosts at once.
    """

    rank: int
    steps: tuple[tuple[Part, ...], ...]


def program_of(movement: Movement, rank: int, hosts: Hosts) -> Program:
    """Return one rank's part of a movement with ranks in its device names.

    ``hosts``: the ranks of each host. A value is sent by the rank that holds it.

    Raises:
        PlanError: A device belongs to none of these ranks, or a fold reads the memory of several ranks.

    """
    group, number, steps = _Holders(movement.buffers, hosts), 0, []
    for step in movement.steps:
        parts: list[Part] = []
        for action in step.actions:
            part = group.part_of(action, number, rank)
            parts += [] if part is None else [part]
            # Every rank counts all copies between hosts, so both ends of a message know the same number.
            number += group.crosses(action)
        steps.append(tuple(sorted(parts, key=functools.partial(group.turn, rank))))
    return Program(rank, tuple(steps))


class _Holders:
    """The ranks that hold a movement's buffers, and the hosts of the ranks."""

    def __init__(self, buffers: Sequence[Buffer], hosts: Hosts) -> None:
        self._hosts = hosts
        self.host_of = {rank: host for host, ranks in enumerate(hosts) for rank in ranks}
        self._holders = list[int]()
        for buffer in buffers:
            rank = rank_of(buffer.device)
            if rank is None or rank not in self.host_of:
                raise PlanError.of_no_rank(buffer.device, len(self.host_of))
            self._holders.append(rank)

    def part_of(self, action: Action, number: int, rank: int) -> Part | None:
        """Return a rank's part in an action, or None if it has none; ``number``: the copy's, if it is sent."""
        receiver = self._holder(action.target)
        if isinstance(action, Copy) and self.crosses(action):
            sender = self._holder(action.source)
            if rank == sender:
                return Send(action, number, receiver)
            return Receive(action, number, sender) if rank == receiver else None
        if rank != receiver:
            return None
        if all(self._holder(source) == rank for source in action.sources):
            return Perform(action)
        if not isinstance(action, Copy):
            # A fold reads all of its sources at once, so one rank must hold them.
            raise PlanError(
                f"Rank {rank} is to fold or concatenate what other ranks hold: copy it to one device of it first."
            )
        # Only the receiver has a part: it reads memory that the other rank has written before.
        return Take(action)

    def crosses(self, action: Action) -> bool:
        """Return whether an action is a copy from one host to another."""
        if not isinstance(action, Copy):
            return False
        sender, receiver = self._holder(action.source), self._holder(action.target)
        return self.host_of[sender] != self.host_of[receiver]

    def turn(self, rank: int, part: Part) -> tuple[int, int, int]:
        """Return the sort key of a part in a rank's step: first sends, to the next host first, then receives."""
        own, count = self.host_of[rank], len(self._hosts)
        if isinstance(part, Send):
            return 0, (self.host_of[part.peer] - own) % count, part.number
        if isinstance(part, Receive):
            return 1, (own - self.host_of[part.peer]) % count, part.number
        return 2, 0, 0

    def _holder(self, where: Range) -> int:
        return self._holders[where.buffer]
