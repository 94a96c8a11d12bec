"""Rows of calls drawn at random, on one or two groups, with ranks that differ, refuse, die, stop or are interrupted."""

import os
import random
import signal

import numpy as np
import pytest
from rank_processes import World

import treefold
from treefold import PerReplica
from treefold.errors import CallMismatchError, GroupError, TreefoldError
from treefold.group import Ticket

_SEEDS = range(150 if os.environ.get("TREEFOLD_CASES") == "full" else 8)
_STEPS = 40
_LENGTHS = (0, 1, 24, 3_000, 24_000, 400_000)
_DTYPES = (np.float32, np.float64, np.int32, np.float16)
_DEADLINE_S = 3.0
_AT_ONCE = 3
#: What a rank says of a call that it refuses by itself.
_OWN = "its own error"
_FAILED = ("PeerLostError", "DeadlineError", "KeyboardInterrupt")


def brought(rank, step, length, dtype):
    """Return what a rank brings to a step: it differs by rank, and sums of 8 ranks are exact in every dtype."""
    row = (np.arange(step, step + 3) % 3 * 2**rank).astype(dtype)
    return np.tile(row, -(-length // 3))[:length]


class Calls:
    """The calls of one step: each returns whether its result is right."""

    def __init__(self, group, step, length, dtype, root):
        self.group, self.root = group, root
        self.everyone = [brought(rank, step, length, dtype) for rank in range(group.size)]
        self.mine = self.everyone[group.rank].copy()
        self.total = sum(self.everyone)

    def all_reduce(self):
        return self._keeps(self.group.all_reduce(self.mine), self.total)

    def in_place(self):
        """Into the value itself, which is as it was if that fails."""
        before = self.mine.copy()
        try:
            self.group.all_reduce(self.mine, "max", out=self.mine)
        except TreefoldError:
            assert (self.mine == before).all()
            raise
        return np.array_equal(self.mine, self.everyone[-1])

    def mapped(self):
        """From memory that the others can read."""
        shared = self.group.empty(self.mine.shape, self.mine.dtype)
        shared[:] = self.mine
        return self._keeps(self.group.all_reduce(shared), self.total)

    def tree(self):
        """Of several arrays and replicas."""
        value = {"a": self.mine, "b": [self.mine[:3].copy(), np.float64(2**self.group.rank)]}
        result = self.group.all_reduce(PerReplica([value, value]) if self.root == self.group.rank else value)
        double = self.total + self.everyone[self.root]
        return np.array_equal(result["a"], double) and np.array_equal(result["b"][0], double[:3])

    def weighted(self):
        """A mean in which one rank counts for nothing."""
        result = self.group.all_reduce(self.everyone[0], "mean", weights=float(self.group.rank == self.root))
        return np.array_equal(result, self.everyone[0])

    def reduce(self):
        result = self.group.reduce(self.mine, root=self.root)
        return np.array_equal(result, self.total) if self.group.rank == self.root else result is None

    def reduce_scatter(self):
        length = len(self.mine) // self.group.size * self.group.size
        part = self.group.reduce_scatter(self.mine[:length].copy())
        return np.array_equal(part, np.split(self.total[:length], self.group.size)[self.group.rank])

    def broadcast(self):
        return self._keeps(self.group.broadcast(self.mine, root=self.root), self.everyone[self.root])

    def all_gather(self):
        result = self.group.all_gather(self.mine[self.group.rank :])
        return self._keeps(result, np.concatenate([one[rank:] for rank, one in enumerate(self.everyone)]))

    def gather(self):
        """To one rank."""
        result = self.group.gather(self.mine.reshape(1, -1), root=self.root, axis=1)
        if self.group.rank != self.root:
            return result is None
        return np.array_equal(result, np.concatenate(self.everyone).reshape(1, -1))

    def barrier(self):
        self.group.barrier()
        return True

    def _keeps(self, result, expected):
        self.kept = result
        return np.array_equal(result, expected)


_NAMES = [name for name in vars(Calls) if not name.startswith("_")]


def follow(me, *, seed, fault, victim):
    """Make the calls of a seed; return the outcome of each. Kept results do not change."""
    draw = random.Random(seed)
    groups = [me.group, _another(me)] if draw.random() < 0.5 else [me.group]
    for group in groups:
        group._link.timeout_seconds = _DEADLINE_S
    if me.rank == victim:
        _prepare(fault, me)
    stories, kept = [], []
    for step in range(_STEPS):
        calls = Calls(draw.choice(groups), step, draw.choice(_LENGTHS), draw.choice(_DTYPES), draw.randrange(me.size))
        names = draw.sample(_NAMES, 2)
        odd = draw.choice([None] * 6 + [("differs", draw.randrange(me.size)), ("refuses", draw.randrange(me.size))])
        stories.append(_story(calls, names[odd == ("differs", me.rank)], odd, refuses=odd == ("refuses", me.rank)))
        if me.rank == victim and stories[-1][0] in _FAILED:
            break
        if draw.random() < 0.3 and hasattr(calls, "kept"):
            kept.append((calls.kept, calls.kept.copy()))
        if len(kept) > draw.randrange(1, 9):
            kept.pop(0)
    signal.setitimer(signal.ITIMER_REAL, 0)
    assert all(np.array_equal(now, then) for now, then in kept)
    for group in groups:
        group.close()
    return stories


def _story(calls, name, odd, *, refuses):
    """Make a call, which one rank refuses or makes another one if it is odd; return how it has ended."""
    try:
        if refuses:
            calls.group.all_reduce(object())
        assert getattr(calls, name)(), name
    except CallMismatchError:
        return "different" if odd else "different for no reason"
    except (GroupError, KeyboardInterrupt) as error:
        return type(error).__name__, str(error)
    except (TypeError, ValueError):
        return _OWN if refuses else "its own error for no reason"
    return "done"


def _another(me):
    kind = b"tickets of another group".ljust(24)
    tickets = "\n".join(Ticket.for_ranks(me.size)) if me.rank == 0 else ""
    told = me.group._link.agree(kind, tickets.encode(), description="tickets")[0].decode().split("\n")
    return treefold.connect(told[me.rank])


def _prepare(fault, me):
    """Let a fault happen to this rank at some moment."""

    def interrupt(*_):
        raise KeyboardInterrupt

    handlers = {
        "dies": signal.SIG_DFL,  # the signal of the timer ends it
        "is interrupted": interrupt,
        "stops": lambda *_: os.kill(os.getpid(), signal.SIGSTOP),
    }
    signal.signal(signal.SIGALRM, handlers[fault])
    signal.setitimer(signal.ITIMER_REAL, random.Random(f"{me.size} {fault} {os.getpid()}").uniform(0.0005, 0.05))


def told_by_all(ended):
    """Return how each call has ended, the same for all ranks but those that refuse it by themselves."""
    stories = [set(step) - {_OWN} for step in zip(*[one.value for one in ended], strict=True)]
    assert all(len(step) <= 1 for step in stories), (stories, ended)
    return [story for step in stories for story in step]


class TestSchedules:
    def test_every_call_is_right_on_all_ranks_or_on_none(self, ranks):
        worlds = [World(follow, 2 + seed % 7, {"seed": seed, "fault": "", "victim": -1}, seconds=90) for seed in _SEEDS]
        for world, ended in zip(worlds, ranks.run_all(worlds, _AT_ONCE), strict=True):
            assert all(one.error is None for one in ended), (world, ended)
            assert set(told_by_all(ended)) <= {"done", "different"}, (world, ended)

    @pytest.mark.parametrize("fault", ["dies", "is interrupted", "stops"])
    def test_all_others_tell_one_story_of_a_rank_that_fails(self, ranks, fault):
        worlds = [
            World(follow, 2 + seed % 7, {"seed": seed, "fault": fault, "victim": seed % (2 + seed % 7)}, seconds=90)
            for seed in _SEEDS
        ]
        failures = 0
        for world, ended in zip(worlds, ranks.run_all(worlds, _AT_ONCE), strict=True):
            others = [one for one in ended if one.rank != world.arguments["victim"]]
            assert all(one.error is None and one.value is not None for one in others), (world, ended)
            failures += told_by_all(others)[-1] not in ("done", "different")
            for story in told_by_all(others):
                assert story in ("done", "different") or f"Rank {world.arguments['victim']}" in story[1], (world, story)
        assert failures > len(worlds) / 2
