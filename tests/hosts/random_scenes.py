"""Scenes on the fake network: groups with ranks that call, fail, interrupt and leave at random.

A seed draws the scene, and the promises of groups must hold in it. Rank ``r`` contributes ``2**r``, so that every
number names its rank.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import pytest
from fake_groups import group_on
from fake_network import Cut, FakeNetwork, Kill, Stop

from treefold import IndexedSlices, PerReplica
from treefold.engines.interface import Limits
from treefold.engines.times import GRACE_PERIOD_S
from treefold.errors import CallMismatchError, GroupError, PeerLostError
from treefold.group.group import Group
from treefold.group.protocol import VALUE_TAGS
from treefold.group.transport.link import GroupLink, one_call

TIMEOUT_S = 10.0
#: How much longer than its deadline a call may take: one grace for the words of others, one for its own to leave; and
#: where messages take up to a second, some of these.
_GRACES_S, _GRACES_IN_THE_WILD_S = 2 * GRACE_PERIOD_S, 2 * GRACE_PERIOD_S + 5.0
METHODS = (
    "new",
    "in place",
    "out",
    "replicas",
    "exact",
    "weights",
    "max",
    "slices",
    "broadcast",
    "gather",
    "scatter",
    "barrier",
)
ODDITIES = (None, None, None, None, None, "mismatch", "refuse", "memory")
TROUBLES = ("none", "kill", "stop", "pause", "cut", "mend", "interrupt", "leave", "skip", "without", "two")


@dataclass(frozen=True)
class Call:
    """One call of all ranks; ``odd`` is what ``who`` does instead."""

    method: str
    length: int
    odd: str | None
    who: int


class Scene:
    """A scene that a seed draws."""

    def __init__(self, seed: int) -> None:
        """Draw."""
        draw = Random(f"scene {seed}")  # noqa: S311 - a test's choice
        self.seed, self.size = seed, draw.choice((2, 2, 3, 3, 4, 5, 6, 8))
        lengths = (1, 60, 5000, draw.randint(1, 9000))
        self.calls = [
            Call(draw.choice(METHODS), draw.choice(lengths), draw.choice(ODDITIES), draw.randrange(self.size))
            for _ in range(draw.randint(1, 3))
        ]
        self.trouble, self.who = draw.choice(TROUBLES), draw.randrange(self.size)
        self.at = draw.randint(2, 160)
        self.until = draw.randrange(len(self.calls) + 1)
        self.chunk_bytes = draw.choice((1 << 10, 1 << 13, 1 << 20))
        moment = draw.random()
        second = draw.randrange(self.size)
        self.seconds = draw.choice((1.0, 9.99, 30.0))
        self.faults: tuple[Any, ...] = {
            "kill": (Kill(self.who, self.at),),
            "stop": (Stop(self.who, self.at),),
            "pause": (Stop(self.who, self.at, self.seconds),),
            "cut": (Cut(self.who, moment),),
            "mend": (Cut(self.who, moment, moment + self.seconds),),
            "two": (Kill(self.who, self.at), draw.choice((Stop(second, 200 - self.at), Kill(second, 200 - self.at)))),
        }.get(self.trouble, ())
        #: How long each rank does something else before each call.
        self.busy_s = [draw.choice((0.0, 0.0, 0.0, 0.3, 3.0)) for _ in range(self.size)]

    @property
    def culprits(self) -> set[int]:
        """The ranks that may be named."""
        ranks = {fault.host if isinstance(fault, Cut) else fault.rank for fault in self.faults}
        return ranks if self.faults or self.trouble == "none" else {self.who}

    def __repr__(self) -> str:
        what = f"{self.trouble} of {self.who} {self.faults}"
        return f"seed {self.seed}: {self.size} ranks, {self.calls}, {what}, busy {self.busy_s}"


@dataclass
class Told:
    """The outcome of a rank: its error, if any, the call, how late it was, and how many calls succeeded."""

    done: int = 0
    error: BaseException | None = None
    late: float = 0.0
    onward: Any = None


def run(scene: Scene, *, is_prompt: bool) -> tuple[FakeNetwork, list[Any]]:
    """Play a scene; return what each rank tells, or the fault that has ended it."""
    limits = Limits(tags=1024, message_bytes=1 << 31, chunk_bytes=scene.chunk_bytes)
    network = FakeNetwork(scene.size, scene.seed, faults=scene.faults, limits=limits, is_prompt=is_prompt)
    return network, network.run(functools.partial(_live, scene, network))


def _live(scene: Scene, network: FakeNetwork, channel: Any) -> Told:
    group, told, rank = group_on(channel, timeout_seconds=TIMEOUT_S), Told(), channel.rank
    is_odd = rank == scene.who
    if scene.trouble == "interrupt" and is_odd:
        _interrupt(channel, scene.at // 8)
    calls = scene.calls[: scene.until] if is_odd and scene.trouble in {"leave", "skip", "without"} else scene.calls
    members = list(range(scene.size))
    began = paused = 0.0
    try:
        for number, call in enumerate(calls):
            if scene.trouble == "without" and number == scene.until:
                group = group.without([scene.who])
                members.remove(scene.who)
            network.be_busy(rank, scene.busy_s[rank])
            began, paused = channel.now(), network.paused_s(rank)
            _make(group, network, call, members, rank)
            told.done += 1
        if scene.trouble not in {"leave", "skip", "without"}:
            began, paused = channel.now(), network.paused_s(rank)
            group.barrier()
            told.done += 1
        group.close()
    except (GroupError, KeyboardInterrupt) as error:
        told.error = error
        told.late = channel.now() - began - (network.paused_s(rank) - paused) - TIMEOUT_S
        told.onward = _go_on(scene, group, error, rank)
    finally:
        group._link.is_closed = True  # as a process that has ended: nothing closes it when the interpreter does
    return told


def _go_on(scene: Scene, group: Group, error: BaseException, rank: int) -> Any:
    """Go on in a smaller group; return its size if its sum is right, else the error."""
    if scene.trouble not in {"kill", "stop", "pause", "interrupt", "cut"} or not isinstance(
        error, PeerLostError | TimeoutError
    ):
        return None
    try:
        if rank in error.ranks:
            return None
        left = [other for other in range(scene.size) if other not in error.ranks]
        with group.without(error.ranks) as onward:
            total = onward.all_reduce(np.full(5000, 2.0**rank, np.float32))
    except GroupError as refused:
        return refused
    assert (total == sum(2.0**other for other in left)).all()
    return onward.size


def _interrupt(channel: Any, number: int) -> None:
    """Let a rank be interrupted in its nth wait."""
    wait, counts = channel.wait, iter(range(number, -1, -1))

    def interrupted(deadline: float) -> Any:
        if next(counts, 1) == 0:
            raise KeyboardInterrupt
        return wait(deadline)

    channel.wait = interrupted


def _make(group: Group, network: FakeNetwork, call: Call, members: list[int], rank: int) -> None:
    """Make a call, and look at its results; odd ones fail alike everywhere before any data has moved."""
    if call.odd is None or call.who not in members or len(members) == 1:
        _check(group, call, members, rank)
        return
    before = _data_sent(network, rank)
    is_mine = call.who == rank
    try:
        if is_mine and call.odd == "mismatch":
            group.all_reduce(np.zeros(call.length + 1, np.float64))
        elif is_mine and call.odd == "refuse":
            group.all_reduce("no array")
        elif is_mine:
            OutOfMemory(group.link).call()
        else:
            _check(group, call, members, rank)
    except CallMismatchError:
        pass
    except (MemoryError, TypeError, ValueError):
        assert is_mine
    else:
        pytest.fail(f"{call} has succeeded")
    assert _data_sent(network, rank) == before, "data has moved in a call that did not match"


class OutOfMemory:
    """A call that its rank has no memory for."""

    def __init__(self, link: GroupLink) -> None:
        self._link = link

    @one_call
    def call(self) -> None:
        raise MemoryError


def _data_sent(network: FakeNetwork, rank: int) -> int:
    return sum(sent.tag >= VALUE_TAGS for sent in network.sends if sent.sender == rank)


def _check(group: Group, call: Call, members: list[int], rank: int) -> None:  # noqa: C901 - a case for each
    """Make a call as it should be made, and assert that its result is right, or outputs are as they were."""
    mine, sums = 2.0**rank, sum(2.0**other for other in members)
    value = np.full(call.length, mine, np.float32)
    match call.method:
        case "in place" | "out":
            end = value if call.method == "in place" else np.full(call.length, -1.0, np.float32)
            before = end[0]
            try:
                group.all_reduce(value, out=end)
            except BaseException:
                assert (end == before).all(), "torn"
                raise
            _equal(end, sums)
        case "replicas":
            counts = [1 + other % 2 for other in members]
            made = group.all_reduce(PerReplica([value] * (1 + rank % 2)))
            _equal(made, sum(count * 2.0**other for count, other in zip(counts, members, strict=True)))
        case "exact":
            _equal(group.all_reduce(cancelling(value, rank)), cancelled(call.length, members))
        case "weights":
            made = group.all_reduce(value, "mean", weights=rank + 1.0)
            weights = [other + 1.0 for other in members]
            total = sum(weight * 2.0**other for weight, other in zip(weights, members, strict=True))
            _equal(made, np.float32(total / sum(weights)))
        case "max":
            _equal(group.all_reduce(value, "max"), 2.0 ** max(members))
        case "slices":
            made = group.all_reduce(IndexedSlices(np.full((1 + rank, 3), mine), np.full(1 + rank, rank), (9, 3)))
            rows = [other for other in members for _ in range(1 + other)]
            assert made.indices.tolist() == rows
            assert (made.values == 2.0 ** np.array(rows)[:, None]).all()
        case "broadcast":
            _equal(group.broadcast(value, len(members) - 1), 2.0 ** members[-1])
        case "gather":
            _equal(group.all_gather(value), np.repeat([2.0**other for other in members], call.length))
        case "scatter":
            _equal(group.reduce_scatter(np.full(len(members) * call.length, mine)), sums)
        case "barrier":
            group.barrier()
        case _:
            _equal(group.all_reduce(value), sums)


def cancelling(value: Any, rank: int) -> PerReplica[Any]:
    """Return many replicas of a value, of which two cancel in some blocks, where no float64 has their exact sum."""
    rows = [value.copy() for _ in range(3 + rank % 2)]
    rows[0][::300], rows[-1][::300] = 2.0**100, -(2.0**100)
    return PerReplica(rows)


def cancelled(length: int, members: list[int]) -> Any:
    """Return the sum of what all members bring so."""
    sums = np.full(length, sum((3 + rank % 2) * 2.0**rank for rank in members), np.float32)
    sums[::300] = sum((1 + rank % 2) * 2.0**rank for rank in members)
    return sums


def _equal(made: Any, right: Any) -> None:
    assert np.all(made == right), (made, right)


def check(scene: Scene, outcomes: list[Any], *, is_prompt: bool) -> None:
    """Assert what must hold, whatever has happened."""
    fired = {outcome.rank for outcome in outcomes if not isinstance(outcome, Told)}
    for rank, outcome in enumerate(outcomes):
        if not isinstance(outcome, Told):
            assert outcome in scene.faults, (scene, rank, outcome)
            continue
        if outcome.error is None:
            continue
        if isinstance(outcome.error, KeyboardInterrupt):
            assert scene.trouble == "interrupt", (scene, rank)
            assert rank == scene.who, (scene, rank)
            continue
        _check_error(scene, rank, outcome, is_prompt=is_prompt)
    if is_prompt and fired == scene.culprits and scene.trouble in {"kill", "stop"}:
        _check_onward(scene, outcomes)


def _check_error(scene: Scene, rank: int, told: Told, *, is_prompt: bool) -> None:
    error = told.error
    if not isinstance(error, PeerLostError | TimeoutError):
        assert scene.trouble == "without", (scene, rank, error)
        assert isinstance(error, GroupError), (scene, rank, error)
        return
    is_away = rank in scene.culprits
    if scene.trouble not in {"pause", "mend"} or not is_away:
        assert told.late <= (_GRACES_S if is_prompt else _GRACES_IN_THE_WILD_S) + 1e-6, (scene, rank, told)
    if is_prompt and not is_away:
        # Who is busy for longer than a grace when another rank gives up says nothing, as if it were late.
        busy = {rank for rank, seconds in enumerate(scene.busy_s) if seconds > GRACE_PERIOD_S}
        may_be_named = scene.culprits | (busy if isinstance(error, TimeoutError) else set())
        assert set(error.ranks) <= may_be_named, (scene, rank, error)


def _check_onward(scene: Scene, outcomes: list[Any]) -> None:
    """Survivors that raise the same error go on together; a rank that left with its results is missed and named."""
    survivors = [told for told in outcomes if isinstance(told, Told)]
    if all(told.error is not None and told.error.ranks == (scene.who,) for told in survivors):
        sizes = {told.onward for told in survivors}
        assert sizes == {len(survivors)}, (scene, survivors)
