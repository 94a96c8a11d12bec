"""Walks one rank's program over a channel: chunks move, and are folded, as soon as their inputs are there."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, zip_longest

from treefold.backends import HostArray
from treefold.devices import rank_of
from treefold.dtypes import itemsize
from treefold.engines.interface import Channel, Transfer, Transfers
from treefold.execution.accesses import dependencies
from treefold.execution.actions import FlatMemory
from treefold.execution.program import Part, Perform, Program, Receive, Send, Take
from treefold.fold import EXACT_BLOCK
from treefold.plan import Movement
from treefold.plan.actions import cut, replicas_held
from treefold.plan.ir import Buffer, Concat, Copy, Range, Role

#: No part is cut into more chunks than this.
_MOST_CHUNKS = 256
#: The most bytes of a copy that ranks of a host share at once: meanwhile more arrives from other hosts.
_SHARED_BYTES = 1 << 20
#: The receives under way from each peer on each rail: one arrives while the next one is requested. More would overflow
#: the queue of a network port, and packets that it drops are sent again late.
_MOST_UNDER_WAY = 2
#: Waits for some of these transfers: yields each that arrives, until there are none left.
Arrivals = Callable[[Transfers], Iterator[Transfer]]
#: Passes copies between the ranks of this host, which all call it alike.
Sharing = Callable[[Sequence[Copy]], None]
#: A step, and a chunk of its copies within the host: the ranks of a host share one chunk after the other.
Turn = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Give:
    """Hand a range to another rank of this host: the other end of a ``Take`` in that rank's program."""

    action: Copy


@dataclass(slots=True)
class _Chunk:
    """One chunk of a part.

    Args:
        part: The part, cut to this chunk.
        step: Its step.
        chunk: Its number among the chunks of its part.
        tag: The tag of the first of its messages, from 0; the next ones have the tags after it.
        messages: The number of its messages; of those after the first, the tags follow, and they may not come.
        needs: The number of chunks that must be done before it.
        followers: The positions of the chunks that wait for it.

    """

    part: Part | Give
    step: int
    chunk: int
    tag: int = 0
    messages: int = 1
    needs: int = 0
    followers: list[int] = field(default_factory=list)

    @property
    def wave(self) -> int:
        """Its position in the order in which chunks could run if all took equally long."""
        return self.step + self.chunk

    @property
    def turn(self) -> Turn:
        """The turn in which the ranks of the host share it, if they do."""
        return self.step, self.chunk


class ProgramWalk:
    """The operations of one rank, made once for a plan.

    Its ``aliases`` are scratch buffers that would only be copies of ranges of this rank. Its ``shares`` are, for each
    turn, the copies between ranks of this host; every rank of the host has the same list. ``replicas`` has the replicas
    whose contributions each buffer holds.
    """

    def __init__(
        self, movement: Movement, programs: Sequence[Program], rank: int, *, chunk_bytes: int, num_tags: int
    ) -> None:
        """Cut a rank's program into chunks, and find the dependencies of each.

        Args:
            movement: The movement.
            programs: The programs of all ranks of this host.
            rank: This rank.
            chunk_bytes: The usual size of a chunk between hosts.
            num_tags: The most tags for the messages to one peer.

        """
        own = next(program for program in programs if program.rank == rank)
        self.buffers = movement.buffers
        self.aliases = dict(_aliases(own, movement.buffers))
        self._rank_of = [rank_of(buffer.device) for buffer in movement.buffers]
        self._rank = rank
        self._dtypes = [movement.leaves[buffer.leaf].dtype for buffer in movement.buffers]
        self._chunk_bytes = chunk_bytes
        self.replicas = replicas_held(movement)
        self._most = min(_MOST_CHUNKS, num_tags // self._most_messages(movement))
        self.shares = list(self._shares(programs))
        self._tags = self._first_tags(own)
        self._operations = self._linked(own)

    def holder(self, buffer: int) -> int | None:
        """Return the rank that holds a buffer."""
        return self._rank_of[buffer]

    def run(self, memory: FlatMemory, channel: Channel, first_tag: int, arrivals: Arrivals, share: Sharing) -> None:
        """Run the program to its end. ``share``: passes copies to the ranks of this host, which all call it alike.

        Raises:
            GroupError: The error that ``arrivals`` or ``share`` raises.

        """
        # All calls of a plan share its walk, so a call changes only its own state.
        state = _State(self._operations, memory, channel, first_tag)
        # Before anything is sent: an engine must buffer a message without a receive, and copy it once more.
        state.begin_to_receive()
        state.start(position for position, one in enumerate(self._operations) if not one.needs)
        for turn, copies in self.shares:
            # Wait only for what this rank gives in this turn: other ranks of the host may already wait in ``share``.
            for transfer in arrivals(state.needed_by(turn)):
                state.arrived(transfer)
            share(copies)
            state.shared(turn)
        for transfer in arrivals(Needed(state.waiting)):
            state.arrived(transfer)

    def _linked(self, program: Program) -> list[_Chunk]:
        """Return the operations in the order of the program, each with its followers."""
        operations = list(self._operations_of(program))
        ends = [_own_ends(one.part) for one in operations]
        for position, (one, before) in enumerate(zip(operations, dependencies(ends, len(self.buffers)), strict=True)):
            one.needs = len(before)
            for other in before:
                operations[other].followers.append(position)
        return operations

    def _operations_of(self, program: Program) -> Iterator[_Chunk]:
        """Yield the chunks of every part, and of the ranges that this rank gives to others of its host."""
        gives: dict[int, list[_Chunk]] = defaultdict(list)
        for (step, chunk), copies in self.shares:
            own = [copy for copy in copies if self._rank_of[copy.source.buffer] == self._rank]
            gives[step] += [_Chunk(Give(copy), step, chunk) for copy in own]
        for step, parts in enumerate(program.steps):
            yield from gives[step]
            for part in parts:
                # Inputs are never written, so a scratch buffer that only copies one can be the input itself.
                if isinstance(part, Perform) and part.action.target.buffer in self.aliases:
                    continue
                for chunk, piece in enumerate(self._cut(part)):
                    if isinstance(part, Send | Receive):
                        messages = self._messages(part.action)
                        tag = self._tags[type(part), part.number] + chunk * messages
                        yield _Chunk(piece, step, chunk, tag, messages)
                    else:
                        yield _Chunk(piece, step, chunk)

    def _cut(self, part: Part) -> Iterator[Part]:
        """Yield the chunks of a part. A concatenation stays whole."""
        if isinstance(part, Perform) and isinstance(part.action, Concat):
            yield part
            return
        length = part.action.target.length
        size = -(-length // self._chunks(part)) if length else 1
        if any(self._is_exact(where) for where in (*part.action.sources, part.action.target)):
            size = -(-size // EXACT_BLOCK) * EXACT_BLOCK  # the blocks of exact sums begin anew in each chunk
        for begin in range(0, length, size):
            chunk = cut(part.action, begin, min(begin + size, length))
            yield replace(part, action=chunk)  # type: ignore[arg-type] # the chunk of a copy is one

    def _chunks(self, part: Part) -> int:
        """Return the number of chunks of a part: the same on both sides of a copy."""
        # Both ends know the length, so they cut a copy alike without a message.
        target = part.action.target
        nbytes = target.length * itemsize(self._dtypes[target.buffer])
        chunk_bytes = max(self._chunk_bytes, _SHARED_BYTES) if isinstance(part, Take) else self._chunk_bytes
        return min(self._most, max(1, -(-nbytes // chunk_bytes)))

    def _most_messages(self, movement: Movement) -> int:
        """Return how many messages there are between two ranks at most, if no copy is cut."""
        # Tags are divided equally among them, a division that all ranks make alike.
        counts = Counter[tuple[int | None, int | None]]()
        for step in movement.steps:
            for action in step.actions:
                if isinstance(action, Copy):
                    ends = self._rank_of[action.source.buffer], self._rank_of[action.target.buffer]
                    counts[ends] += self._messages(action)
        return max(counts.values(), default=1)

    def _messages(self, copy: Copy) -> int:
        """Return how many messages a chunk of a copy takes: after exact sums, one of each replica may follow."""
        return 1 + len(self.replicas[copy.target.buffer]) * self._is_exact(copy.target)

    def _is_exact(self, where: Range) -> bool:
        return self.buffers[where.buffer].role is Role.EXACT

    def _shares(self, programs: Sequence[Program]) -> Iterator[tuple[Turn, list[Copy]]]:
        """Yield each turn in which ranks of a host share anything, with all copies of it."""
        for step, parts in enumerate(zip(*(program.steps for program in programs), strict=True)):
            shares = [part for own in parts for part in own if isinstance(part, Take)]
            for chunk, pieces in enumerate(zip_longest(*map(self._cut, shares))):
                yield (step, chunk), [piece.action for piece in pieces if isinstance(piece, Take)]

    def _first_tags(self, program: Program) -> dict[tuple[type[Part], int], int]:
        """Return the tag of each message's first chunk: both sides count the messages of a pair in the same order."""
        tags: dict[tuple[type[Part], int], int] = {}
        messages = [part for part in chain.from_iterable(program.steps) if isinstance(part, Send | Receive)]
        free: dict[tuple[type[Part], int], int] = defaultdict(int)
        for part in sorted(messages, key=lambda part: part.number):
            way = type(part), part.peer
            tags[type(part), part.number] = free[way]
            free[way] += self._chunks(part) * self._messages(part.action)
        return tags


class _State:
    """One run of a walk: the open needs of each operation, and the transfers under way."""

    def __init__(self, operations: Sequence[_Chunk], memory: FlatMemory, channel: Channel, first_tag: int) -> None:
        self.waiting: set[Transfer] = set()
        self._operations, self._memory = operations, memory
        self._channel, self._first_tag = channel, first_tag
        # A copy, because each call counts it down.
        self._needs = [one.needs for one in operations]
        #: The position of each receive, and which of its messages it is.
        self._of: dict[Transfer, tuple[int, int]] = {}
        #: What is not yet asked of each peer over each rail, by steps: a message comes after what it is made of, so no
        #: circle waits.
        self._expected: dict[tuple[int, int], deque[tuple[int, int]]] = defaultdict(deque)
        #: What follows the messages that have come, and how many are still to come for each receive.
        self._rests: dict[int, Sequence[HostArray]] = {}
        self._open_messages: dict[int, int] = defaultdict(lambda: 1)
        #: By peer and step, how many messages have not come behind which others may follow.
        self._unknown: dict[int, Counter[int]] = defaultdict(Counter)
        self._under_way: dict[tuple[int, int], int] = defaultdict(int)
        # By steps, then waves: roughly the order in which the peer can send them.
        in_turn = sorted(enumerate(operations), key=lambda item: (item[1].step, item[1].wave))
        for position, one in in_turn:
            if isinstance(one.part, Receive):
                self._expected[self._way(one.part.peer, one.tag)].append((position, 0))
                self._unknown[one.part.peer][one.step] += one.messages > 1
        self._open_gives = Counter(one.turn for one in operations if isinstance(one.part, Give))
        self._takes: dict[Turn, list[int]] = defaultdict(list)
        for position, one in enumerate(operations):
            if isinstance(one.part, Take):
                self._takes[one.turn].append(position)

    def begin_to_receive(self) -> None:
        """Begin to receive from every peer, as many messages as may be under way at once."""
        for way in list(self._expected):
            self._receive_over(way)

    def _way(self, peer: int, tag: int) -> tuple[int, int]:
        """Return the peer and the rail of a message."""
        return peer, (self._first_tag + tag) % self._channel.limits.rails

    def _receive_over(self, way: tuple[int, int]) -> None:
        expected = self._expected[way]
        while expected and self._under_way[way] < _MOST_UNDER_WAY and not self._is_early(way[0], expected[0][0]):
            position, number = expected.popleft()
            one = self._operations[position]
            assert isinstance(one.part, Receive)  # noqa: S101 - for mypy: nothing else is expected
            buffer = self._rests[position][number - 1] if number else self._bytes(one.part.action.target)
            transfer = self._channel.receive(one.part.peer, self._first_tag + one.tag + number, buffer)
            # Set before this rank waits: at a deadline, whoever relays for others is not the one to blame.
            self._of[transfer] = position, number
            self._under_way[way] += 1
            self.waiting.add(transfer)

    def needed_by(self, turn: Turn) -> Needed:
        """Return the transfers to wait for until this rank can give everything that others take in a turn."""
        return Needed(self.waiting, lambda: self._open_gives[turn] > 0)

    def start(self, positions: Iterable[int]) -> None:
        """Perform operations without open needs, and then those that they make ready, in order of waves."""
        ready = [(self._operations[position].wave, position) for position in positions]
        heapq.heapify(ready)
        while ready:
            _, position = heapq.heappop(ready)
            # Receives and takes are done when their data arrive, not when they begin.
            if self._do(self._operations[position]):
                for follower in self._done(position):
                    heapq.heappush(ready, (self._operations[follower].wave, follower))

    def arrived(self, transfer: Transfer) -> None:
        """Go on with the operations that a transfer has made ready."""
        self.waiting.discard(transfer)
        position, number = self._of.pop(transfer)
        way = self._way(transfer.peer, self._operations[position].tag + number)
        self._under_way[way] -= 1
        if not number:
            self._expect_rest(position, transfer.peer)
        # First, so that the next chunk travels while this one is folded.
        self._receive_over(way)
        self._open_messages[position] -= 1
        if not self._open_messages[position]:
            self._rests.pop(position, None)  # the memory of the call has them, and forgets them once they are folded
            self.start(self._done(position))

    def _expect_rest(self, position: int, peer: int) -> None:
        """Ask for what follows a message that has come, before the next message."""
        one = self._operations[position]
        rests = self._memory.rest(one.part.action.target)
        self._rests[position], self._open_messages[position] = rests, 1 + len(rests)
        for number in range(len(rests), 0, -1):
            self._expected[self._way(peer, one.tag + number)].appendleft((position, number))
        self._unknown[peer][one.step] -= one.messages > 1
        for way in list(self._expected):
            if way[0] == peer:
                self._receive_over(way)

    def _is_early(self, peer: int, position: int) -> bool:
        """Tell whether messages of an earlier step, on which a later one may depend, are still to be asked for."""
        # An engine may return what it receives from a peer in the order in which it was asked for that.
        step = self._operations[position].step
        return any(count and before < step for before, count in self._unknown[peer].items())

    def shared(self, turn: Turn) -> None:
        """Go on with the operations that the copies of a turn have made ready."""
        for position in self._takes[turn]:
            self.start(self._done(position))

    def _done(self, position: int) -> list[int]:
        ready = []
        for follower in self._operations[position].followers:
            self._needs[follower] -= 1
            if not self._needs[follower]:
                ready.append(follower)
        return ready

    def _do(self, one: _Chunk) -> bool:
        """Perform or begin an operation; return whether it is done."""
        match one.part:
            case Receive() | Take():
                return False
            case Give():
                self._open_gives[one.turn] -= 1
            case Send(action=copy, peer=peer):
                # It counts as done while the engine still reads the range: a plan never writes a range twice, and the
                # memory is reused only after the vote, when all receivers have everything.
                for number, message in enumerate((self._bytes(copy.source), *self._memory.rest(copy.source))):
                    self._channel.send(peer, self._first_tag + one.tag + number, message)
            case Perform(action=action):
                self._memory.perform(action)
        return True

    def _bytes(self, where: Range) -> HostArray:
        part: HostArray = self._memory.part(where)
        return part.view("u1")


@dataclass(frozen=True, slots=True)
class Needed:
    """Transfers to wait for, while ``is_needed`` returns True."""

    transfers: set[Transfer]
    is_needed: Callable[[], bool] = lambda: True

    def __len__(self) -> int:
        return len(self.transfers) if self.is_needed() else 0

    def __iter__(self) -> Iterator[Transfer]:
        return iter(self.transfers)


def _own_ends(part: Part | Give) -> tuple[Sequence[Range], Range | None]:
    """Return the ranges that a part reads and writes on this rank; a copy between ranks has one end here."""
    sources = () if isinstance(part, Receive | Take) else part.action.sources
    return sources, None if isinstance(part, Send | Give) else part.action.target


def _aliases(program: Program, buffers: Sequence[Buffer]) -> Iterator[tuple[int, Range]]:
    """Yield scratch buffers that would only be copies of a rank's own contributions."""
    for part in chain.from_iterable(program.steps):
        if isinstance(part, Perform) and isinstance(part.action, Copy):
            source, target = part.action.source, part.action.target
            is_whole = target.length == buffers[target.buffer].length
            if is_whole and buffers[target.buffer].role is Role.SCRATCH:
                yield target.buffer, source
