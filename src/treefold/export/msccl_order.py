"""The order of steps within blocks, and which steps must wait for which.

Steps that pass one transfer on happen together; whatever is ordered must be ordered for such groups as a whole, and all
blocks take their steps in that one order. Then the first group that is not done can always go on: nothing hangs.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from treefold.export.msccl_algorithm import READS, REDUCES, WRITES
from treefold.export.msccl_lower import Work

Chunk = tuple[int, str, int]  # rank, buffer, chunk


@dataclass(frozen=True, slots=True)
class Ordered:
    """Steps in order; ``waits``: for every step (by ``id``) the steps of other blocks that must be done before it."""

    works: list[Work]
    waits: Mapping[int, Sequence[Work]]


def put_in_order(works: Sequence[Work], block_of: Mapping[int, int]) -> Ordered:
    """Return the steps in an order that all blocks can take them in, and the waits that the data asks for.

    ``works``: in an order that one thread could run, but for transfers that are passed on at once; ``block_of``: the
    block of each, by ``id``. A wait that follows from another one, from the order in a block or from what a transfer
    brings along is left out, if it only keeps a reader's chunk from being overwritten. Fewer steps than were given: the
    others wait for each other.
    """
    needs = {id(work): list(_needs) for work, _needs in _data_needs(works)}
    groups = _groups(works)
    order = _sorted(works, groups, needs)
    return Ordered(order, _waits(order, groups, needs, block_of))


@dataclass(frozen=True, slots=True)
class _Need:
    """``work`` must be done first; ``is_read``: because it reads what is overwritten then."""

    work: Work
    is_read: bool


def _data_needs(works: Sequence[Work]) -> Iterator[tuple[Work, list[_Need]]]:
    """Yield what each step must come after: writers of what it uses, readers of what it overwrites."""
    writer: dict[Chunk, Work] = {}
    readers: dict[Chunk, list[Work]] = defaultdict(list)
    for work in works:
        found: dict[tuple[int, bool], _Need] = {}

        def need(other: Work | None, *, is_read: bool, found: dict[tuple[int, bool], _Need] = found) -> None:
            if other is not None:
                found[id(other), is_read] = _Need(other, is_read)

        reads, writes = used_chunks(work)
        for chunk in reads:
            need(writer.get(chunk), is_read=False)
        for chunk in writes:
            need(writer.get(chunk), is_read=False)
            for reader in readers[chunk]:
                need(reader, is_read=True)
        for chunk in reads:
            readers[chunk].append(work)
        for chunk in writes:
            writer[chunk], readers[chunk] = work, []
        yield work, [item for item in found.values() if item.work is not work]


def used_chunks(work: Work) -> tuple[list[Chunk], list[Chunk]]:
    """Return the chunks that a step reads and writes; input and output are one, as they may be at run time."""
    places = {"source": work.source, "target": work.target}
    chunks = {
        name: [(work.rank, place.buffer.replace("o", "i"), place.chunk + n) for n in range(work.count)]
        for name, place in places.items()
    }
    reads = chunks["source"] if work.type in READS else []
    if work.type in REDUCES and work.recv < 0:
        reads = reads + chunks["target"]
    return reads, chunks["target"] if work.type in WRITES else []


def _groups(works: Sequence[Work]) -> dict[int, list[Work]]:
    """Return the group of each step: what one transfer passes through, from its sender to where it ends."""
    groups: dict[int, list[Work]] = {}
    for work in works:
        if work.recv < 0:
            group, at = [work], work.feeds
            while at is not None:
                group.append(at)
                at = at.feeds
            groups |= {id(member): group for member in group}
    return groups


def _sorted(
    works: Sequence[Work], groups: Mapping[int, list[Work]], needs: Mapping[int, Sequence[_Need]]
) -> list[Work]:
    """Return the steps so that every group comes after what any of its steps needs; earlier ones first."""
    leaders = {id(group[0]): (number, group) for number, group in enumerate(groups[id(work)] for work in works)}
    before = {
        key: {id(groups[id(need.work)][0]) for member in group for need in needs[id(member)]} - {key}
        for key, (_, group) in leaders.items()
    }
    after: dict[int, list[int]] = defaultdict(list)
    for key, others in before.items():
        for other in others:
            after[other].append(key)
    ready = [(leaders[key][0], key) for key, others in before.items() if not others]
    heapq.heapify(ready)
    order: list[Work] = []
    while ready:
        _, key = heapq.heappop(ready)
        order += leaders[key][1]
        for other in after[key]:
            before[other].discard(key)
            if not before[other]:
                heapq.heappush(ready, (leaders[other][0], other))
    return order


def _waits(
    order: Sequence[Work],
    groups: Mapping[int, list[Work]],
    needs: Mapping[int, Sequence[_Need]],
    block_of: Mapping[int, int],
) -> dict[int, list[Work]]:
    """Return the waits, without those that others imply. ``known``: what is over for a block, as bits."""
    number = {id(work): index for index, work in enumerate(order)}
    known: dict[int, int] = defaultdict(int)
    over: dict[int, int] = {}
    waits: dict[int, list[Work]] = {}
    brought = 0
    for work in order:
        seen = known[block_of[id(work)]] | (0 if groups[id(work)][0] is work else brought)
        chosen: list[Work] = []
        for need in sorted(needs[id(work)], key=lambda need: -number[id(need.work)]):
            event = (1 if need.is_read else 2) << 2 * number[id(need.work)]
            if not event & seen:
                chosen.append(need.work)
                seen |= over[id(need.work)]
        waits[id(work)] = chosen
        reading = 1 << 2 * number[id(work)]
        brought = (
            seen | reading
        )  # to the next step of the group: this one has read, its own copy may not be written yet
        over[id(work)] = known[block_of[id(work)]] = seen | 3 * reading
    return waits
