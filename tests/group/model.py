"""The protocol of a group, as a machine that can be stepped through every interleaving, with a crash at every step.

Transitions, prologue and programs come from the native core, so that there is one table. The memory accesses of a stage
are modelled in steps: writing and reading take two each, and both steps of a read must see the same. A violation is
raised with the steps that lead to it. Mutants change one thing each, to prove that the model would see it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from treefold import _native

TABLES = _native.group_protocol()
_FOLLOWS = {(before, event): after for before, event, after in TABLES["transitions"]}
_AREAS, _SCRATCH = 2, 2
_FINAL = ("committed", "refused", "broken")
_MEETINGS = ("meet_first", "meet", "meet_commit")


class Violation(AssertionError):  # noqa: N818 - what a model finds is called so
    """Something that must never happen."""


class Call(NamedTuple):
    """One operation that all ranks make: its program, chunks, whether ranks keep the result, and whether it differs."""

    path: str
    chunks: int = 1
    keeps: bool = False
    differs: bool = False


@dataclass(frozen=True)
class Rules:
    """How the protocol behaves; the mutants differ."""

    has_two_words: bool = False
    has_double_buffer: bool = True
    chooses_once: bool = True

    def half(self, operation: int, chunk: int) -> int:
        return (operation + chunk * self.has_double_buffer) & 1


class Rank(NamedTuple):
    """Where a rank is. ``step``: of its operation; ``role``: within a meeting; ``outs``: outputs that are whole."""

    is_alive: bool = True
    operation: int = 1
    step: int = 0
    role: str = ""
    meetings: int = 0
    area: int = _SCRATCH
    outcomes: tuple[str, ...] = ()
    outs: tuple[bool, ...] = ()
    leases: tuple[int, ...] = (0,) * _AREAS


class State(NamedTuple):
    """Everything that ranks share, and every rank. Tags in memory are (operation, chunk)."""

    sequence: int
    phase: str
    was_refused: bool
    arrived: int
    met: int
    ranks: tuple[Rank, ...]
    staging: tuple[tuple[object, ...], ...]
    slots: tuple[tuple[int, ...], ...]
    choice: tuple[int, int]
    areas: tuple[tuple[tuple[int, int], ...], ...]


def put(values: tuple, index: int, value: object) -> tuple:
    return (*values[:index], value, *values[index + 1 :])


def steps_of(call: Call) -> list[tuple[str, int]]:
    """Return the steps of a call, with the chunk that each is about."""
    body, tail = TABLES["programs"][call.path]
    stages = [(stage, 0) for stage in TABLES["prologue"]]
    for chunk in range(call.chunks - 1):
        stages += [(stage, chunk) for stage in body]
    stages += [(stage, call.chunks - 1) for stage in tail]
    is_staged = call.path in ("staged", "small")
    steps = [("enter", 0)]
    for stage, chunk in stages:
        if stage == "copy_in":
            steps += [("write", 0), ("written", 0)] * is_staged
        elif stage == "copy_next":
            steps += [("write", chunk + 1), ("written", chunk + 1)]
        elif stage in ("fold", "fold_all") and is_staged:
            steps += [("read", chunk), (f"{stage}ed", chunk)]
        elif stage in ("fold", "place"):
            steps += [("folded", chunk)]
        elif stage == "copy_out":
            steps += [("copy_out", chunk), ("copied_out", chunk)]
        else:
            steps += [(stage, chunk), *[("look", 0)] * (stage == "meet_first")]
    return [*steps, ("return", call.chunks - 1)]


class Model:
    """Calls of some ranks under some rules."""

    def __init__(self, size: int, calls: list[Call], rules: Rules | None = None, crashes: int = 1) -> None:
        """Begin before the first call."""
        self.size, self.calls, self.rules = size, calls, rules or Rules()
        self.crashes = crashes
        self.steps = [steps_of(call) for call in calls]
        self.start = State(
            sequence=0,
            phase="committed",
            was_refused=False,
            arrived=0,
            met=0,
            ranks=(Rank(),) * size,
            staging=((None, None),) * size,
            slots=((0, 0),) * size,
            choice=(_SCRATCH, _SCRATCH),
            areas=(((0, 0),) * size,) * (_AREAS + 1),
        )

    def explore(self, most: int = 3_000_000) -> int:
        """Step through every interleaving; return the number of states.

        Raises:
            Violation: something happens that must not.

        """
        seen = {self.start}
        waiting = [(self.start, None)]
        while waiting:
            state, trail = waiting.pop()
            try:
                followers = list(self.follow(state))
                self.check(state, followers)
            except Violation as violation:
                raise Violation(f"{violation}: {' · '.join(_words(trail))}") from None
            for label, follower in followers:
                if follower not in seen:
                    seen.add(follower)
                    waiting.append((follower, (trail, label)))
            assert len(seen) < most, "more states than a test has time for"
        return len(seen)

    def is_done(self, rank: Rank) -> bool:
        return rank.operation > len(self.calls) or "broken" in rank.outcomes

    def check(self, state: State, followers: list[tuple[str, State]]) -> None:
        """Raise if ranks were told different stories, or if one waits for ever."""
        for operation in range(len(self.calls)):
            told = {rank.outcomes[operation] for rank in state.ranks if len(rank.outcomes) > operation}
            if len(told) > 1:
                raise Violation(f"operation {operation + 1} ends in {sorted(told)}")
            for rank in state.ranks:
                if len(rank.outcomes) > operation:
                    is_whole = rank.outcomes[operation] == "committed" and self.calls[operation].path != "agree"
                    if rank.outs[operation] != is_whole:
                        raise Violation(f"an output of operation {operation + 1} is not what its rank is told")
        goes_on = [label for label, _ in followers if "crash" not in label]
        if not goes_on and any(rank.is_alive and not self.is_done(rank) for rank in state.ranks):
            raise Violation("a rank waits for ever")

    def follow(self, state: State) -> Iterator[tuple[str, State]]:
        """Yield what can happen next."""
        dead = sum(not rank.is_alive for rank in state.ranks)
        for me, rank in enumerate(state.ranks):
            if not rank.is_alive:
                continue
            for area, held in enumerate(rank.leases):
                if held:
                    yield f"{me} lets go", self.now(state, me, leases=put(rank.leases, area, 0))
            if self.is_done(rank):
                continue
            if dead < self.crashes:
                yield f"{me} crash", self.now(state, me, is_alive=False)
            name, chunk = self.steps[rank.operation - 1][rank.step]
            stage = self.meet if name in _MEETINGS else getattr(self, f"do_{name}")
            for follower in stage(state, me, name) if name in _MEETINGS else stage(state, me, chunk):
                yield f"{me} {name}{rank.role and '/'}{rank.role} {chunk}", follower

    def now(self, state: State, me: int, **changes: object) -> State:
        return state._replace(ranks=put(state.ranks, me, state.ranks[me]._replace(**changes)))

    def next(self, state: State, me: int, **changes: object) -> State:
        return self.now(state, me, step=state.ranks[me].step + 1, role="", **changes)

    def finish(self, state: State, me: int) -> State:
        return self.now(state, me, step=len(self.steps[state.ranks[me].operation - 1]) - 1, role="")

    def decide(self, state: State, operation: int, event: str) -> State:
        """Change the decision by compare-and-swap, if the event has a meaning."""
        begins = event == "enter"
        after = _FOLLOWS.get((state.phase, event))
        if after is None or state.sequence != operation - begins:
            return state
        was_refused = state.phase == "refused" if begins else state.was_refused
        return state._replace(sequence=operation, phase=after, was_refused=was_refused)

    def outcome(self, state: State, rank: Rank) -> str:
        if state.sequence == rank.operation or (state.phase == "broken" and state.sequence < rank.operation):
            return state.phase
        return "refused" if state.was_refused else "committed"

    # What steps do. Each yields the states that may follow.

    def do_enter(self, state: State, me: int, _: int) -> Iterator[State]:
        state = self.decide(state, state.ranks[me].operation, "enter")
        yield self.finish(state, me) if state.phase == "broken" else self.next(state, me)

    def do_publish(self, state: State, me: int, _: int) -> Iterator[State]:
        operation = state.ranks[me].operation
        slots = put(state.slots[me], operation & 1, operation)
        yield self.next(state._replace(slots=put(state.slots, me, slots)), me)

    def do_look(self, state: State, me: int, _: int) -> Iterator[State]:
        """Copy descriptors and the choice."""
        operation = state.ranks[me].operation
        self._see(state, operation)
        area = state.choice[operation & 1]
        if not self.rules.chooses_once and self.calls[operation - 1].keeps:
            area = self._free_area(state)
        yield self.next(state, me, area=area)

    def _see(self, state: State, operation: int) -> None:
        if any(slot[operation & 1] != operation for slot in state.slots):
            raise Violation(f"a descriptor of operation {operation} is gone before all have read it")

    def _free_area(self, state: State) -> int:
        free = [area for area in range(_AREAS) if not any(rank.leases[area] for rank in state.ranks)]
        return free[0] if free else _SCRATCH

    def _stage(self, state: State, me: int, chunk: int, tag: object) -> State:
        half = self.rules.half(state.ranks[me].operation, chunk)
        return state._replace(staging=put(state.staging, me, put(state.staging[me], half, tag)))

    def do_write(self, state: State, me: int, chunk: int) -> Iterator[State]:
        yield self.next(self._stage(state, me, chunk, "half written"), me)

    def do_written(self, state: State, me: int, chunk: int) -> Iterator[State]:
        yield self.next(self._stage(state, me, chunk, (state.ranks[me].operation, chunk)), me)

    def _read(self, state: State, me: int, chunk: int) -> None:
        operation = state.ranks[me].operation
        half = self.rules.half(operation, chunk)
        for other in range(self.size):
            if other != me and state.staging[other][half] != (operation, chunk):
                raise Violation(f"rank {me} reads staging of {other} that is {state.staging[other][half]}")

    def do_read(self, state: State, me: int, chunk: int) -> Iterator[State]:
        self._read(state, me, chunk)
        yield self.next(state, me)

    def do_folded(self, state: State, me: int, chunk: int) -> Iterator[State]:
        """End reading, and write this rank's slice of the result."""
        rank = state.ranks[me]
        if self.calls[rank.operation - 1].path == "staged":
            self._read(state, me, chunk)
        area = state.areas[rank.area]
        if chunk and area[me] != (rank.operation, chunk - 1):
            raise Violation(f"rank {me} goes on in an area that is another's now")
        for other in state.ranks:
            if rank.area < _AREAS and other.leases[rank.area]:
                raise Violation(f"rank {me} writes where somebody keeps operation {other.leases[rank.area]}")
        areas = put(state.areas, rank.area, put(area, me, (rank.operation, chunk)))
        yield self.next(state._replace(areas=areas), me)

    def do_fold_alled(self, state: State, me: int, chunk: int) -> Iterator[State]:
        self._read(state, me, chunk)
        yield self.next(state, me, outs=(*state.ranks[me].outs, True))

    def _see_result(self, state: State, me: int, chunk: int) -> None:
        rank = state.ranks[me]
        if any(piece != (rank.operation, chunk) for piece in state.areas[rank.area]):
            raise Violation(f"rank {me} copies out of operation {rank.operation}: {state.areas[rank.area]}")

    def do_copy_out(self, state: State, me: int, chunk: int) -> Iterator[State]:
        self._see_result(state, me, chunk)
        yield self.next(state, me)

    def do_copied_out(self, state: State, me: int, chunk: int) -> Iterator[State]:
        self._see_result(state, me, chunk)
        yield self.next(state, me, outs=(*state.ranks[me].outs, True))

    def do_return(self, state: State, me: int, chunk: int) -> Iterator[State]:
        """Read the decision, take a lease, and go to the next call."""
        rank = state.ranks[me]
        told = self.outcome(state, rank)
        if told not in _FINAL:
            raise Violation(f"rank {me} returns from operation {rank.operation} that is {told}")
        call = self.calls[rank.operation - 1]
        if told == "refused" or (call.path == "agree" and told == "committed"):
            self._see(state, rank.operation)
        leases = rank.leases
        if told == "committed" and call.keeps and rank.area < _AREAS:
            self._see_result(state, me, chunk)
            leases = put(leases, rank.area, rank.operation)
        outs = rank.outs if len(rank.outs) == rank.operation else (*rank.outs, False)
        yield self.now(
            state, me, operation=rank.operation + 1, step=0, outcomes=(*rank.outcomes, told), outs=outs, leases=leases,
            area=_SCRATCH,
        )  # fmt: skip

    def meet(self, state: State, me: int, stage: str) -> Iterator[State]:
        """Arrive; the last one decides, then tells; the others wait, or judge if somebody is dead."""
        rank = state.ranks[me]
        if not rank.role:
            number = rank.meetings + 1
            is_last = state.arrived + 1 == number * self.size
            state = state._replace(arrived=state.arrived + 1)
            yield self.now(state, me, meetings=number, role="decides" if is_last else "waits")
        elif rank.role == "decides":
            yield self.now(self.complete(state, rank, stage), me, role="tells")
        elif rank.role == "tells":
            yield self.leave(state._replace(met=max(state.met, rank.meetings)), me, stage)
        elif state.met >= rank.meetings or self.outcome(state, rank) in _FINAL:
            yield self.leave(state, me, stage)
        elif not all(one.is_alive for one in state.ranks):
            judged = self.decide(state, rank.operation, "spoil")
            if judged is not state:
                yield judged

    def complete(self, state: State, rank: Rank, stage: str) -> State:
        """Do what the last arriver does for all."""
        call = self.calls[rank.operation - 1]
        has_commit = ("meet_commit", call.chunks - 1) in self.steps[rank.operation - 1]
        if stage == "meet_first":
            area = self._free_area(state) if call.keeps else _SCRATCH
            state = state._replace(choice=put(state.choice, rank.operation & 1, area))
            event = "refuse" if call.differs else "match" if has_commit else "commit"
            return self.decide(state, rank.operation, event)
        if stage == "meet_commit" and not self.rules.has_two_words:
            return self.decide(state, rank.operation, "commit")
        return state

    def leave(self, state: State, me: int, stage: str) -> State:
        """Leave a meeting: go on, or to the end if the operation has ended otherwise than by a commit."""
        rank = state.ranks[me]
        if self.rules.has_two_words and stage == "meet_commit" and state.met >= rank.meetings:
            # The mutant: that the meeting is over is a word of its own, and all who see it take it for the verdict.
            state = state._replace(sequence=rank.operation, phase="committed")
        told = self.outcome(state, rank)
        return self.finish(state, me) if told in ("broken", "refused") else self.next(state, me)


def _words(trail: object) -> list[str]:
    labels: list[str] = []
    while trail is not None:
        trail, label = trail
        labels.append(label)
    return labels[::-1]
