"""Walks one rank's program over a channel: chunks are computed, sent and received as soon as what they need is there."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from treefold.backends import HostArray
from treefold.devices import rank_of
from treefold.dtypes import itemsize
from treefold.engines.channel import Channel, Transfer
from treefold.execution.accesses import Accesses
from treefold.execution.actions import FlatMemory
from treefold.execution.program import Part, Perform, Program, Receive, Send, Share
from treefold.plan import Movement
from treefold.plan.actions import cut
from treefold.plan.ir import Buffer, Concat, Copy, Range, Role

#: No part is cut into more chunks than this.
_MOST_CHUNKS = 256
#: Waits for some of these transfers: yields each that arrives, until there are none left.
Arrivals = Callable[[Collection[Transfer]], Iterator[Transfer]]
#: Hands copies to the ranks of this host, which all call it alike.
Sharing = Callable[[Sequence[Copy]], None]


@dataclass(frozen=True, slots=True)
class Give:
    """Hand a range to another rank of this host: the other end of a ``Share`` in that rank's program."""

    action: Copy


@dataclass(slots=True)
class _Operation:
    """One chunk of a part. ``needs``: how many others come first; ``followers``: the positions of those it precedes."""

    part: Part | Give
    step: int
    tag: int
    needs: int
    followers: list[int]


class Walk:
    """The operations of one rank, made once for a plan.

    ``aliases``: scratch buffers that would only be copies of what lies on this rank already. ``shares``: what the ranks
    of this host hand each other, step after step, each as a list that all of them know.
    """

    def __init__(self, movement: Movement, programs: Sequence[Program], rank: int, chunk_bytes: int) -> None:
        """Cut a rank's program into chunks, and find what each waits for.

        ``programs``: those of all ranks of its host.
        """
        own = next(program for program in programs if program.rank == rank)
        self.buffers = movement.buffers
        self.aliases = dict(_aliases(own, movement.buffers))
        self.shares = _shares(programs)
        self._rank_of = [rank_of(buffer.device) for buffer in movement.buffers]
        self._rank = rank
        self._dtypes = [movement.leaves[buffer.leaf].dtype for buffer in movement.buffers]
        self._chunk_bytes = chunk_bytes
        self._tags = _first_tags(own, self._chunks)
        self._operations = self._ordered(own)

    def holder(self, buffer: int) -> int | None:
        """Return the rank that holds a buffer."""
        return self._rank_of[buffer]

    @property
    def num_tags(self) -> int:
        """How many tags its messages have, from 0."""
        return 1 + max((one.tag for one in self._operations), default=0)

    def run(self, memory: FlatMemory, channel: Channel, first_tag: int, arrivals: Arrivals, share: Sharing) -> None:
        """Do everything. ``share``: hands copies to the ranks of this host, which all call it alike.

        Raises:
            GroupError: what ``arrivals`` and ``share`` raise.

        """
        state = _State(self._operations, memory, channel, first_tag)
        state.receive_all()
        state.start(position for position, one in enumerate(self._operations) if not one.needs)
        for step, copies in self.shares:
            for transfer in arrivals(state.needed_by(step)):
                state.arrived(transfer)
            share(copies)
            state.shared(step)
        for transfer in arrivals(state.waiting):
            state.arrived(transfer)

    def _ordered(self, program: Program) -> list[_Operation]:
        """Return the operations, each behind those that it needs, early chunks of late steps before late ones."""
        drafts = sorted(self._drafts(program), key=lambda draft: draft[0])
        accesses = [Accesses() for _ in self.buffers]
        operations: list[_Operation] = []
        for position, ((_, step), part, tag) in enumerate(drafts):
            before: set[int] = set()
            for source in _reads(part):
                before |= accesses[source.buffer].read(source.start, source.stop, position)
            target = _written(part)
            if target is not None:
                before |= accesses[target.buffer].write(target.start, target.stop, position)
            before.discard(position)
            operations.append(_Operation(part, step, tag, len(before), []))
            for other in before:
                operations[other].followers.append(position)
        return operations

    def _drafts(self, program: Program) -> Iterator[tuple[tuple[int, int], Part | Give, int]]:
        """Yield chunks with their place in the order, and their tag."""
        for step, parts in enumerate(program.steps):
            for part in parts:
                if isinstance(part, Perform) and part.action.target.buffer in self.aliases:
                    continue
                for chunk, piece in enumerate(self._cut(part)):
                    is_message = isinstance(part, Send | Receive)
                    tag = self._tags[type(part), part.number] + chunk if isinstance(part, Send | Receive) else 0
                    yield (step + chunk * is_message, step), piece, tag
        for step, copies in self.shares:
            for copy in copies:
                if self._rank_of[copy.source.buffer] == self._rank:
                    yield (step, step), Give(copy), 0

    def _cut(self, part: Part) -> Iterator[Part]:
        """Yield the chunks of a part. What ranks share, and what is laid behind each other, stays whole."""
        if isinstance(part, Share) or (isinstance(part, Perform) and isinstance(part.action, Concat)):
            yield part
            return
        whole = _whole(part)
        size = -(-whole.length // self._chunks(whole)) if whole.length else 1
        for begin in range(0, whole.length, size):
            yield _chunk(part, begin, min(begin + size, whole.length))

    def _chunks(self, whole: Range) -> int:
        """Return into how many chunks a range is cut: the same on both sides of a copy."""
        nbytes = whole.length * itemsize(self._dtypes[whole.buffer])
        return min(_MOST_CHUNKS, max(1, -(-nbytes // self._chunk_bytes)))


class _State:
    """How far a walk has come."""

    def __init__(
        self, operations: Sequence[_Operation], memory: FlatMemory, channel: Channel, first_tag: int
    ) -> None:
        self.waiting: set[Transfer] = set()
        self._operations, self._memory = operations, memory
        self._channel, self._first_tag = channel, first_tag
        self._needs = [one.needs for one in operations]
        self._of: dict[Transfer, int] = {}
        self._open_gives = {position for position, one in enumerate(operations) if isinstance(one.part, Give)}

    def receive_all(self) -> None:
        """Begin to receive everything: nothing that arrives has to wait."""
        for position, one in enumerate(self._operations):
            if isinstance(one.part, Receive):
                where = self._bytes(one.part.target)
                transfer = self._channel.receive(one.part.peer, self._first_tag + one.tag, where)
                self._of[transfer] = position
                self.waiting.add(transfer)

    def needed_by(self, step: int) -> Needed:
        """Return what this rank waits for as long as it cannot give what others of its host take in a step."""
        return Needed(self.waiting, lambda: any(self._operations[give].step == step for give in self._open_gives))

    def start(self, positions: Iterable[int]) -> None:
        """Do what needs nothing more, and what then needs nothing more, in order."""
        ready = list(positions)
        heapq.heapify(ready)
        while ready:
            position = heapq.heappop(ready)
            if self._do(self._operations[position], position):
                for follower in self._done(position):
                    heapq.heappush(ready, follower)

    def arrived(self, transfer: Transfer) -> None:
        """Go on with what has waited for a transfer."""
        self.waiting.discard(transfer)
        self.start(self._done(self._of.pop(transfer)))

    def shared(self, step: int) -> None:
        """Go on with what has waited for the other ranks of this host."""
        for position, one in enumerate(self._operations):
            if isinstance(one.part, Share) and one.step == step:
                self.start(self._done(position))

    def _done(self, position: int) -> list[int]:
        ready = []
        for follower in self._operations[position].followers:
            self._needs[follower] -= 1
            if not self._needs[follower]:
                ready.append(follower)
        return ready

    def _do(self, one: _Operation, position: int) -> bool:
        """Perform or begin an operation; tell whether it is done."""
        match one.part:
            case Receive() | Share():
                return False
            case Give():
                self._open_gives.discard(position)
            case Send(source=source, peer=peer):
                self._channel.send(peer, self._first_tag + one.tag, self._bytes(source))
            case Perform(action=action):
                self._memory.perform(action)
        return True

    def _bytes(self, where: Range) -> HostArray:
        part: HostArray = self._memory.part(where)
        return part.view("u1")


@dataclass(frozen=True, slots=True)
class Needed:
    """Transfers to wait for, as long as some are needed."""

    transfers: set[Transfer]
    is_needed: Callable[[], bool]

    def __bool__(self) -> bool:
        return bool(self.transfers) and self.is_needed()

    def __iter__(self) -> Iterator[Transfer]:
        return iter(self.transfers)


def _shares(programs: Sequence[Program]) -> list[tuple[int, list[Copy]]]:
    """Return what the ranks of a host hand each other in each step that has any of it."""
    found = []
    for step, parts in enumerate(zip(*(program.steps for program in programs), strict=True)):
        copies = [part.action for own in parts for part in own if isinstance(part, Share)]
        if copies:
            found.append((step, copies))
    return found


def _first_tags(
    program: Program, chunks: Callable[[Range], int]
) -> dict[tuple[type[Send] | type[Receive], int], int]:
    """Return the tag of the first chunk of each message: both sides count the messages of a pair in one order."""
    tags = {}
    messages = [part for part in _parts(program) if isinstance(part, Send | Receive)]
    free: dict[tuple[type[Send] | type[Receive], int], int] = defaultdict(int)
    for part in sorted(messages, key=lambda part: part.number):
        way = type(part), part.peer
        tags[type(part), part.number] = free[way]
        free[way] += chunks(_whole(part))
    return tags


def _parts(program: Program) -> Iterator[Part]:
    for parts in program.steps:
        yield from parts


def _aliases(program: Program, buffers: Sequence[Buffer]) -> Iterator[tuple[int, Range]]:
    """Yield scratch buffers that would only be copies of a rank's own contributions."""
    for part in _parts(program):
        if isinstance(part, Perform) and isinstance(part.action, Copy):
            source, target = part.action.source, part.action.target
            is_whole = target.length == buffers[target.buffer].length
            if is_whole and buffers[target.buffer].role is Role.SCRATCH:
                yield target.buffer, source


def _reads(part: Part | Give) -> Sequence[Range]:
    match part:
        case Send(source=source):
            return (source,)
        case Perform(action=action) | Give(action=action):
            return action.sources
    return ()


def _written(part: Part | Give) -> Range | None:
    match part:
        case Receive(target=target):
            return target
        case Perform(action=action) | Share(action=action):
            return action.target
    return None


def _whole(part: Part) -> Range:
    """Return the range that a part is cut by."""
    match part:
        case Send(source=source):
            return source
        case Receive(target=target):
            return target
    return part.action.target


def _chunk(part: Part, start: int, stop: int) -> Part:
    match part:
        case Send(source=whole):
            return replace(part, source=Range(whole.buffer, whole.start + start, whole.start + stop))
        case Receive(target=whole):
            return replace(part, target=Range(whole.buffer, whole.start + start, whole.start + stop))
    return replace(part, action=cut(part.action, start, stop))
