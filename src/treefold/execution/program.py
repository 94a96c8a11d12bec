"""A movement divided among the ranks of a group: what each of them computes, sends and receives. No arrays.

Between hosts values are sent. Within a host ranks read each other's memory, so a copy there is the receiver's alone.
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
    """Send a copy's source to rank ``peer``; ``number``: of the copy, among all between hosts in order of the plan."""

    action: Copy
    number: int
    peer: int


@dataclass(frozen=True, slots=True)
class Receive:
    """Receive a copy's target from rank ``peer``, by the number under which that rank sends it."""

    action: Copy
    number: int
    peer: int


@dataclass(frozen=True, slots=True)
class Perform:
    """Perform an action on this rank's own devices."""

    action: Action


@dataclass(frozen=True, slots=True)
class Take:
    """Copy what another rank of this host holds, through memory that both share, to this rank."""

    action: Copy


Part = Send | Receive | Perform | Take


@dataclass(frozen=True, slots=True)
class Program:
    """What a rank does in each step of a movement; in some it does nothing.

    The parts of a step may run at once. Sends stand first, in the order in which they should begin: every rank begins
    with the host behind its own, so that no port receives from all hosts at once.
    """

    rank: int
    steps: tuple[tuple[Part, ...], ...]


def program_of(movement: Movement, rank: int, hosts: Hosts) -> Program:
    """Return one rank's part of a movement whose devices have ranks in their names; ``hosts``: the ranks of each.

    Every value is sent by the rank that holds it.

    Raises:
        PlanError: a device without a rank or of none of these, or a fold of what lies on several ranks.

    """
    group, number, steps = _Holders(movement.buffers, hosts), 0, []
    for step in movement.steps:
        parts: list[Part] = []
        for action in step.actions:
            part = group.part_of(action, number, rank)
            parts += [] if part is None else [part]
            # Every rank counts all copies between hosts, its own or not: so both ends give a message the same number
            # unasked.
            number += group.crosses(action)
        steps.append(tuple(sorted(parts, key=functools.partial(group.turn, rank))))
    return Program(rank, tuple(steps))


class _Holders:
    """Which ranks hold a movement's buffers, and which ranks share a host."""

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
        """Return what a rank does for an action, None for nothing; ``number``: that of the copy if it is sent."""
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
            # A fold reads all of its sources at once, which only one rank's own memory allows.
            raise PlanError(
                f"Rank {rank} is to fold or concatenate what other ranks hold: copy it to one device of it first."
            )
        # The receiver's part alone: it reads the memory of the other rank, which has nothing to do but to have written
        # it.
        return Take(action)

    def crosses(self, action: Action) -> bool:
        """Tell whether an action is a copy from one host to another."""
        if not isinstance(action, Copy):
            return False
        sender, receiver = self._holder(action.source), self._holder(action.target)
        return self.host_of[sender] != self.host_of[receiver]

    def turn(self, rank: int, part: Part) -> tuple[int, int, int]:
        """Return when a part's turn is in a rank's step: sends to the next host first, receipts from the one before."""
        own, count = self.host_of[rank], len(self._hosts)
        if isinstance(part, Send):
            return 0, (self.host_of[part.peer] - own) % count, part.number
        if isinstance(part, Receive):
            return 1, (own - self.host_of[part.peer]) % count, part.number
        return 2, 0, 0

    def _holder(self, where: Range) -> int:
        return self._holders[where.buffer]
