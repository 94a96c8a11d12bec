"""A plan as an MSCCL algorithm: steps in thread blocks, ordered so that none waits for itself.

Each pack gets channels of its own, one up and one down, as long as the interpreters' limits allow; then its chunks
follow each other through the tree as fast as its links carry them. Where they do not, packs share channels.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from treefold.errors import ExportError
from treefold.export.msccl_algorithm import MAX_BLOCKS, MAX_CHANNELS, Algorithm, Block, Gpu, Place, Step, check_limits
from treefold.export.msccl_lower import NOWHERE, Lowered, Work, lower
from treefold.export.msccl_order import Chunk, Ordered, put_in_order, used_chunks
from treefold.export.msccl_run import prove_msccl
from treefold.export.msccl_xml import read_msccl, write_msccl_xml
from treefold.plan import Plan

_UNBOUNDED = 2**50  # bytes


def to_msccl(
    plan: Plan, *, name: str = "treefold", proto: str = "Simple", min_bytes: int = 0, max_bytes: int | None = None
) -> str:
    """Return a plan as MSCCL XML, for RCCL, msccl and msccl-executor-nccl; what was written is read again and proved.

    The plan: an all-reduce of one array, one replica per device; GPU r of the algorithm is the device of replica r. Its
    chunks are the largest that all packs are made of, so plan a length that shares divide (24 elements for packs of
    twenty-fourths), not the length that will be reduced. These programs use an algorithm for values whose number of
    elements its ``nchunksperloop`` divides, and of ``min_bytes`` to ``max_bytes``. It holds in place and out of place.

    Raises:
        ExportError: another collective, replicas that share a device, packs that need too many chunks or blocks.

    """
    largest = _UNBOUNDED if max_bytes is None else max_bytes
    algorithm = make_algorithm(plan, name=name, proto=proto, min_bytes=min_bytes, max_bytes=largest)
    text = write_msccl_xml(algorithm)
    prove_msccl(read_msccl(text))
    return text


def make_algorithm(plan: Plan, *, name: str, proto: str, min_bytes: int, max_bytes: int) -> Algorithm:
    """Return the algorithm of a plan with as many channels as the limits allow.

    Raises:
        ExportError: see ``to_msccl``.

    """
    width, refused, is_stored = max(1, min(2 * plan.num_packs, MAX_CHANNELS)), None, False
    while width:
        lowered = lower(plan, is_stored=is_stored)  # anew: placing the steps changes them
        blocks = _Blocks(lowered, width)
        if blocks.is_stuck and not is_stored:
            is_stored = True
            continue
        gpus = tuple(
            Gpu(tuple(blocks.of_rank(rank)), lowered.chunks, lowered.chunks, scratch)
            for rank, scratch in enumerate(lowered.scratch_chunks)
        )
        algorithm = Algorithm(name, proto, lowered.chunks, gpus, True, True, min_bytes, max_bytes)  # noqa: FBT003
        try:
            check_limits(algorithm)
        except ExportError as error:
            refused = refused or error
            # More channels are more blocks; fewer are longer ones.
            width = width // 2 if max(len(gpu.blocks) for gpu in gpus) > MAX_BLOCKS else 0
        else:
            return algorithm
    raise refused or AssertionError


@dataclass(slots=True)
class _Draft:
    """A block while its steps are collected."""

    send: int
    recv: int
    channel: int
    works: list[Work] = field(default_factory=list)


class _Blocks:
    """Places steps in blocks: fused where a block can have both peers, in an order that cannot hang."""

    def __init__(self, lowered: Lowered, width: int) -> None:
        self.lanes = {lane: number % width for number, lane in enumerate(sorted({w.lane for w in lowered.works}))}
        self.drafts: dict[int, list[_Draft]] = defaultdict(list)
        self.sends: dict[tuple[int, int, int], _Draft] = {}
        self.receives: dict[tuple[int, int, int], _Draft] = {}
        works = self._fused(lowered.works)
        placed = {id(work): self._draft(work) for work in works}
        self.ordered: Ordered = put_in_order(works, {key: id(draft) for key, draft in placed.items()})
        self.is_stuck = len(self.ordered.works) < len(works)
        for work in self.ordered.works:
            placed[id(work)].works.append(work)
        self._number()

    def _fused(self, works: list[Work]) -> list[Work]:
        """Join a step that receives with one that sends the same on, where one block can do both."""
        at = {id(work): index for index, work in enumerate(works)}
        readers: dict[Chunk, list[Work]] = defaultdict(list)
        last: dict[Chunk, Work] = {}
        for work in works:
            reads, writes = used_chunks(work)
            for chunk in reads:
                readers[chunk].append(work)
            last |= dict.fromkeys(writes, work)
        gone: set[int] = set()
        for work in works:
            chunks = used_chunks(work)[1]
            if work.type not in {"r", "rrc"} or any(last[chunk] is not work for chunk in chunks):
                continue
            after = {id(w): w for chunk in chunks for w in readers[chunk] if at[id(w)] > at[id(work)]}
            onward = next((w for key, w in after.items() if key not in gone and self._can_join(work, w)), None)
            if onward is not None:
                self._join(work, onward, is_kept=len(after) > 1 or work.target.buffer != "s")
                gone.add(id(onward))
        return [work for work in works if id(work) not in gone]

    def _can_join(self, work: Work, onward: Work) -> bool:
        if (onward.type, onward.count, onward.lane, onward.source) != ("s", work.count, work.lane, work.target):
            return False
        receiving = self.receives.get((work.rank, work.recv, self.lanes[work.lane]))
        sending = self.sends.get((work.rank, onward.send, self.lanes[work.lane]))
        if receiving is None or sending is None:
            found = receiving or sending
            return found is None or (receiving is None and found.recv < 0) or (sending is None and found.send < 0)
        return receiving is sending

    def _join(self, work: Work, onward: Work, *, is_kept: bool) -> None:
        work.send, work.feeds = onward.send, onward.feeds
        if work.type == "r":
            work.type = "rcs"
        elif is_kept:
            work.type = "rrcs"
        else:
            work.type, work.target = "rrs", NOWHERE
        self._draft(work)

    def _draft(self, work: Work) -> _Draft:
        """Return the block that has a step's peers, made or widened as needed."""
        channel = self.lanes[work.lane]
        receiving = self.receives.get((work.rank, work.recv, channel)) if work.recv >= 0 else None
        sending = self.sends.get((work.rank, work.send, channel)) if work.send >= 0 else None
        draft = receiving or sending
        if work.recv < 0 and work.send < 0:
            draft = next((d for d in self.drafts[work.rank] if (d.send, d.recv, d.channel) == (-1, -1, channel)), None)
        if draft is None:
            draft = _Draft(-1, -1, channel)
            self.drafts[work.rank].append(draft)
        if work.recv >= 0:
            draft.recv = work.recv
            self.receives[work.rank, work.recv, channel] = draft
        if work.send >= 0:
            draft.send = work.send
            self.sends[work.rank, work.send, channel] = draft
        return draft

    def _number(self) -> None:
        """Say at which position in its block each step ends up: one after the waits that stand before it."""
        self.position: dict[int, tuple[int, int]] = {}
        self.awaited: set[int] = set()
        for drafts in self.drafts.values():
            for number, draft in enumerate(drafts):
                at = 0
                for work in draft.works:
                    waits = self.ordered.waits[id(work)]
                    self.awaited |= {id(wait) for wait in waits}
                    at += max(len(waits), 1)
                    self.position[id(work)] = number, at - 1

    def of_rank(self, rank: int) -> list[Block]:
        """Return the finished blocks of a rank."""
        return [Block(d.send, d.recv, d.channel, tuple(self._steps(d))) for d in self.drafts[rank]]

    def _steps(self, draft: _Draft) -> list[Step]:
        steps = []
        for work in draft.works:
            waits = [self.position[id(wait)] for wait in self.ordered.waits[id(work)]]
            # A step waits for one other; a nop before it waits for each further one.
            steps += [Step("nop", NOWHERE, Place("o", -1), 0, wait, is_awaited=False) for wait in waits[:-1]]
            wait, is_awaited = (waits[-1] if waits else None), id(work) in self.awaited
            steps.append(Step(work.type, work.source, work.target, work.count, wait, is_awaited))
        return steps
