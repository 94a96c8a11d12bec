"""Runs an MSCCL algorithm on symbols, to prove that it is an all-reduce: the reader's half of the export.

Nothing here knows how the algorithm was made. A transfer happens when every block that it passes through is ready for
it (no buffer in between is counted on), so what comes through here cannot hang for want of one. Two steps that use one
chunk must be ordered by the algorithm itself, by blocks, waits and transfers, in whatever order they happened to run.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from treefold.errors import ExportError
from treefold.export.msccl_algorithm import READS, RECEIVES, REDUCES, SENDS, WRITES, Algorithm, Place, Step

_BITS = 16  # of a contribution's count: 65,535 copies of one do not run over into the next
_START = 1  # the event before all others

_Block = tuple[int, int]  # rank, number of the block
_Chunk = tuple[int, str, int]  # rank, buffer, chunk
_Value = tuple[int, int]  # chunk it belongs to, contributions: 2**(16·rank) each


def prove_msccl(algorithm: Algorithm) -> None:
    """Run an algorithm in every placement that it claims (in place, out of place) and look at the result.

    Raises:
        ExportError: it stops, reads what is not there, leaves two uses of a chunk unordered, adds chunks that do not
            belong together, or does not end with every contribution once in every chunk of every GPU.

    """
    for is_in_place in (True, False):
        if algorithm.in_place if is_in_place else algorithm.out_of_place:
            _Run(algorithm, is_in_place=is_in_place).run()


@dataclass(slots=True)
class _Uses:
    """Who wrote a chunk last, and who has read it since: events, and names for the reader."""

    written: int
    writer: str
    reads: list[tuple[int, str]] = field(default_factory=list)


class _Run:
    def __init__(self, algorithm: Algorithm, *, is_in_place: bool) -> None:
        self.algorithm = algorithm
        self.is_in_place = is_in_place
        self.values: dict[_Chunk, _Value] = {}
        self.uses: dict[_Chunk, _Uses] = {}
        self.at: dict[_Block, int] = {}
        self.seen: dict[_Block, int] = {}  # events that are over for a block, as bits
        self.over: dict[tuple[int, int, int], int] = {}  # the same, after a step that others wait for
        self.receiver: dict[tuple[int, int, int], _Block] = {}
        self.sender: dict[tuple[int, int, int], _Block] = {}
        self.events = 1
        for rank, gpu in enumerate(algorithm.gpus):
            for chunk in range(algorithm.chunks):
                place = self._where(rank, Place("i", chunk), 0)
                self.values[place], self.uses[place] = (chunk, 1 << (_BITS * rank)), _Uses(_START, "the input")
            for number, block in enumerate(gpu.blocks):
                self.at[rank, number], self.seen[rank, number] = 0, _START
                self.receiver[rank, block.recv, block.channel] = (rank, number)
                self.sender[rank, block.send, block.channel] = (rank, number)

    def run(self) -> None:
        todo = list(self.at)
        while todo:
            for block in self._ready_chain(todo.pop()):
                todo += [other for other in self.at if other[0] == block[0]] if self._advance(block) else [block]
        left = [block for block in self.at if self._step(block) is not None]
        if left:
            raise ExportError.deadlock([self._name(block) for block in left[:4]])
        self._check_results()

    def _step(self, block: _Block) -> Step | None:
        steps = self.algorithm.gpus[block[0]].blocks[block[1]].steps
        return steps[self.at[block]] if self.at[block] < len(steps) else None

    def _name(self, block: _Block) -> str:
        step = self._step(block)
        return f"GPU {block[0]}, block {block[1]}, step {self.at[block]} ({'' if step is None else step.type})"

    def _is_ready(self, block: _Block) -> bool:
        step = self._step(block)
        return step is not None and (step.after is None or self.at[block[0], step.after[0]] > step.after[1])

    def _ready_chain(self, block: _Block) -> list[_Block]:
        """Return the blocks that one transfer passes through, if all are ready; one block if it needs no other."""
        chain = [block]
        while self._is_ready(chain[0]):
            step = self._step(chain[0])
            if step is None or step.type not in RECEIVES:
                break
            rank, channel = chain[0][0], self._channel(chain[0])
            source = self.algorithm.gpus[rank].blocks[chain[0][1]].recv
            before = self.sender.get((source, rank, channel))
            if before is None or not self._sends(before) or before in chain:
                return []
            chain.insert(0, before)
        while self._is_ready(chain[-1]) and self._sends(chain[-1]):
            rank, channel = chain[-1][0], self._channel(chain[-1])
            target = self.algorithm.gpus[rank].blocks[chain[-1][1]].send
            after = self.receiver.get((target, rank, channel))
            step = None if after is None else self._step(after)
            if after is None or step is None or step.type not in RECEIVES or after in chain:
                return []
            chain.append(after)
        return chain if all(map(self._is_ready, chain)) else []

    def _channel(self, block: _Block) -> int:
        return self.algorithm.gpus[block[0]].blocks[block[1]].channel

    def _sends(self, block: _Block) -> bool:
        step = self._step(block)
        return step is not None and step.type in SENDS

    def _advance(self, block: _Block) -> bool:
        """Run the step at which a block stands; its chain runs in order. Return whether others may wait for it."""
        step = self._step(block)
        if step is None:
            raise AssertionError
        name = self._name(block)
        seen = self.seen[block]
        if step.after is not None:
            seen |= self.over[block[0], *step.after]
        arrived: list[_Value] = []
        if step.type in RECEIVES:
            arrived, upstream, count = self.wire
            seen |= upstream
            if count != step.count:
                raise ExportError.field(name, "cnt", step.count, f"{count}, as its sender has it")
        reading, writing = 1 << self.events, 2 << self.events
        self.events += 2
        values = self._work(block[0], step, arrived, name=name, events=(seen, reading, writing))
        # Whoever receives knows that the sender has read, not that it has finished writing its own copy.
        self.wire = values, seen | reading, step.count
        self.seen[block] = seen | reading | writing
        if step.is_awaited:
            self.over[block[0], block[1], self.at[block]] = self.seen[block]
        self.at[block] += 1
        return step.is_awaited

    wire: tuple[list[_Value], int, int]

    def _work(
        self, rank: int, step: Step, arrived: list[_Value], *, name: str, events: tuple[int, int, int]
    ) -> list[_Value]:
        seen, reading, writing = events
        values = arrived
        if step.type in READS:
            read = [self._read(self._where(rank, step.source, n), seen, reading, name) for n in range(step.count)]
            values = _added(read, arrived, name) if arrived else read
        if step.type in WRITES:
            targets = [self._where(rank, step.target, n) for n in range(step.count)]
            if step.type in REDUCES and not arrived:
                values = _added(values, [self._read(place, seen, reading, name) for place in targets], name)
            for place, value in zip(targets, values, strict=True):
                self._write(place, value, seen | reading, writing, name)
        return values

    def _where(self, rank: int, place: Place, offset: int) -> _Chunk:
        buffer = "i" if place.buffer == "o" and self.is_in_place else place.buffer
        return rank, buffer, place.chunk + offset

    def _read(self, place: _Chunk, seen: int, event: int, name: str) -> _Value:
        if place not in self.values:
            raise ExportError.unwritten(name, _spelled(place))
        uses = self.uses[place]
        if not uses.written & seen:
            raise ExportError.race(_spelled(place), uses.writer, name)
        uses.reads.append((event, name))
        return self.values[place]

    def _write(self, place: _Chunk, value: _Value, seen: int, event: int, name: str) -> None:
        uses = self.uses.get(place)
        if uses is not None:
            for used, user in [(uses.written, uses.writer), *uses.reads]:
                if not used & seen:
                    raise ExportError.race(_spelled(place), user, name)
        self.values[place], self.uses[place] = value, _Uses(event, name)

    def _check_results(self) -> None:
        ranks = range(len(self.algorithm.gpus))
        everyone = sum(1 << (_BITS * rank) for rank in ranks)
        for rank in ranks:
            for chunk in range(self.algorithm.chunks):
                found = self.values.get(self._where(rank, Place("o", chunk), 0))
                if found != (chunk, everyone):
                    raise ExportError.wrong_result(rank, chunk, _contents(found, len(ranks)))


def _added(one: list[_Value], other: list[_Value], name: str) -> list[_Value]:
    for (first, _), (second, _) in zip(one, other, strict=True):
        if first != second:
            raise ExportError.crossed(name, first, second)
    return [(chunk, a + b) for (chunk, a), (_, b) in zip(one, other, strict=True)]


def _spelled(place: _Chunk) -> str:
    return f"chunk {place[2]} of buffer {place[1]} on GPU {place[0]}"


def _contents(value: _Value | None, count: int) -> str:
    if value is None:
        return "nothing"
    times: dict[int, list[int]] = defaultdict(list)
    for rank in range(count):
        times[value[1] >> (_BITS * rank) & (2**_BITS - 1)].append(rank)
    parts = [f"GPUs {ranks} {number} times" for number, ranks in sorted(times.items()) if number != 1]
    return f"chunk {value[0]}, {', '.join(parts) or 'every GPU once'}"
