"""A movement divided among the ranks of a group: what each of them computes, sends and receives. No arrays.

Between hosts values are sent. Within a host ranks read each other's memory, so a copy there is the receiver's alone.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from treefold.devices import rank_of
from treefold.errors import PlanError
from treefold.plan.ir import Action, Buffer, Copy, Range, Step
from treefold.plan.movement import Movement
from treefold.planners.direct import Hosts


@dataclass(frozen=True, slots=True)
class Send:
    """Send a range to rank ``peer``; ``number``: of the copy, among all copies between hosts in order of the plan."""

    number: int
    source: Range
    peer: int
    pack: int


@dataclass(frozen=True, slots=True)
class Receive:
    """Receive a range from rank ``peer``, by the number under which that rank sends it."""

    number: int
    target: Range
    peer: int
    pack: int


@dataclass(frozen=True, slots=True)
class Perform:
    """Perform an action on this rank's own devices."""

    action: Action


@dataclass(frozen=True, slots=True)
class Share:
    """Copy what another rank of this host holds, through memory that both share, to this rank."""

    action: Copy


Part = Send | Receive | Perform | Share


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
    group, number, steps = _Group(movement.buffers, hosts), 0, []
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


def put_together(programs: Sequence[Program], buffers: Sequence[Buffer], hosts: Hosts) -> tuple[Step, ...]:
    """Return the steps of the movement that the programs of all ranks make, which proves it again.

    Every part must be one that its rank can do: on its own devices, or on those of its host as ``program_of`` says.
    Every number is sent once and received once, in one step, by the ranks that name each other, with one length and
    pack.

    Raises:
        PlanError: the programs are not those of all ranks, or do not fit together.

    """
    group = _Group(buffers, hosts)
    ranks, lengths = [program.rank for program in programs], [len(program.steps) for program in programs]
    if ranks != sorted(group.host_of) or len(set(lengths)) != 1:
        raise PlanError.programs(len(group.host_of), ranks, lengths)
    known: set[int] = set()
    return tuple(
        Step(_join(step, [(program.rank, program.steps[step - 1]) for program in programs], group, known))
        for step in range(1, len(programs[0].steps) + 1)
    )


def _join(step: int, held: Sequence[tuple[int, Sequence[Part]]], group: _Group, known: set[int]) -> tuple[Action, ...]:
    """Return the actions of a step, whose parts are ``held`` by rank; ``known``: the numbers of earlier steps."""
    actions = dict[Action, None]()
    sends, receives = dict[int, tuple[int, Send]](), dict[int, tuple[int, Receive]]()
    for rank, part in ((rank, part) for rank, parts in held for part in parts):
        if not group.can_do(part, rank):
            raise PlanError.in_programs(step, rank, f"cannot do {part}")
        if isinstance(part, Perform | Share):
            is_new = part.action not in actions
            actions[part.action] = None
        elif isinstance(part, Send):
            is_new = part.number not in sends.keys() | known
            sends[part.number] = rank, part
        else:
            is_new = part.number not in receives
            receives[part.number] = rank, part
        if not is_new:
            raise PlanError.in_programs(step, rank, f"does again {part}")
    # A message with one end would leave a rank waiting until the deadline, so it is found here.
    for number in sorted(sends.keys() ^ receives.keys()):
        rank, alone = sends[number] if number in sends else receives[number]
        raise PlanError.in_programs(step, rank, f"finds no other end of {alone}")
    for number, (rank, send) in sends.items():
        receiver, receive = receives[number]
        expected = Receive(number, receive.target, rank, send.pack)
        if (send.peer, receive, send.source.length) != (receiver, expected, receive.target.length):
            raise PlanError.in_programs(step, rank, f"has {send}, for which rank {receiver} has {receive}")
        actions[Copy(send.source, receive.target, send.pack)] = None
    # Numbers are unique over the whole movement: a message of a later step must not be taken for this one.
    known.update(sends)
    return tuple(actions)


class _Group:
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
                return Send(number, action.source, receiver, action.pack)
            return Receive(number, action.target, sender, action.pack) if rank == receiver else None
        if rank != receiver:
            return None
        if all(self._holder(source) == rank for source in action.sources):
            return Perform(action)
        if not isinstance(action, Copy):
            # A fold reads all of its sources at once, which only one rank's own memory allows.
            raise PlanError.across_ranks(rank)
        # The receiver's part alone: it reads the memory of the other rank, which has nothing to do but to have written
        # it.
        return Share(action)

    def crosses(self, action: Action) -> bool:
        """Tell whether an action is a copy from one host to another."""
        return isinstance(action, Copy) and not self._share_host(
            self._holder(action.source), self._holder(action.target)
        )

    def turn(self, rank: int, part: Part) -> tuple[int, int, int]:
        """Return when a part's turn is in a rank's step: sends to the next host first, receipts from the one before."""
        own, count = self.host_of[rank], len(self._hosts)
        if isinstance(part, Send):
            return 0, (self.host_of[part.peer] - own) % count, part.number
        if isinstance(part, Receive):
            return 1, (own - self.host_of[part.peer]) % count, part.number
        return 2, 0, 0

    def can_do(self, part: Part, rank: int) -> bool:
        """Tell whether a rank can do a part, whatever the others do."""
        match part:
            case Send(source=source, peer=peer):
                return self._is_elsewhere(peer, rank) and self._holds(rank, source)
            case Receive(target=target, peer=peer):
                return self._is_elsewhere(peer, rank) and self._holds(rank, target)
            case Perform(action=action):
                return self._holds(rank, action.target, *action.sources)
            case Share(action=action):
                has = self._holds(rank, action.target) and self._has(action.source)
                return has and self._is_beside(self._holder(action.source), rank)

    def _has(self, where: Range) -> bool:
        return 0 <= where.buffer < len(self._holders)

    def _holder(self, where: Range) -> int:
        return self._holders[where.buffer]

    def _holds(self, rank: int, *wheres: Range) -> bool:
        return all(self._has(where) and self._holder(where) == rank for where in wheres)

    def _share_host(self, one: int, other: int) -> bool:
        return self.host_of[one] == self.host_of[other]

    def _is_beside(self, other: int, rank: int) -> bool:
        return other != rank and self._share_host(other, rank)

    def _is_elsewhere(self, other: int, rank: int) -> bool:
        return other in self.host_of and not self._share_host(other, rank)
