"""One rank of a group fails, at every point of every kind of call: all others report the same, with whole outputs.

With ``TREEFOLD_CASES=full``, every point is tried with 17 times as many sizes, ranks and chunks.
"""

import contextlib
import os
import random
import signal
import statistics

import numpy as np
import pytest
from rank_processes import World, told

from treefold import _native
from treefold.errors import GroupError

#: What a call does, for the protocol: its program. With the numbers of elements below, a staged call has three chunks.
PATHS = ("agree", "small", "staged", "mapped", "placed")
_ELEMENTS = {"small": 700, "mapped": 20_000, "placed": 20_000}
_CHUNKS = 3
SEEDS = 17 if os.environ.get("TREEFOLD_CASES") == "full" else 1
#: For ranks that wait for one that is stopped: more than ranks that are only slow on a busy machine take.
_DEADLINE_S = 2.0
#: Worlds at once: those with a stopped rank mostly wait.
_AT_ONCE = {"stop": 9}
_LOST = {
    "kill": "has exited",
    "exit": "has exited",
    "segfault": "has exited",
    "raise": "has left the group with an error",
    "stop": ", which is stopped, had not come by the deadline",
}


def elements(path, size):
    """Return how many float32 a rank has, so that a staged call's chunks fill the staging memory of these ranks."""
    chunk_bytes = min(1 << 20, (4 << 20) // (2 * size))
    return _CHUNKS * chunk_bytes // 4 - 100 if path == "staged" else _ELEMENTS.get(path, 1)


def points(path):
    """Return every point of a call where a rank can fail (stage, moment, chunk), and whether it is decided by then."""
    tables = _native.group_protocol()
    body, tail = tables["programs"][path]
    stages = [(stage, 0) for stage in (*tables["prologue"], *body)] + [
        (stage, bool(body) * (_CHUNKS - 1)) for stage in tail
    ]
    deciding = "meet_commit" if ("meet_commit", stages[-1][1]) in stages else "meet_first"
    is_decided, found = False, []
    for stage, chunk in stages:
        for moment in ("before", "decided", "after") if stage in ("meet_first", "meet_commit") else ("before", "after"):
            is_decided |= stage == deciding and moment == "decided"
            found.append((stage, moment, chunk, is_decided))
    return found


def sevens(path, seed, size, factor):
    """Return 0 to 6 again and again, from a seed on, times a factor."""
    length = elements(path, size)
    row = (np.arange(seed, seed + 7) % 7 * factor).astype(np.float32)
    return np.tile(row, -(-length // 7))[:length]


def expected(path, seed, size):
    total = 2 ** (size - 1) if path == "placed" else 2**size - 1
    return b"" if path == "agree" else sevens(path, seed, size, total).tobytes()


def call(me, path, seed):
    """Make a call, and return the bytes that it puts out; outputs are as they were if it fails."""
    mine = sevens(path, seed, me.size, 2**me.rank)
    before = mine.tobytes()
    if path == "agree":
        me.group.barrier()
        return b""
    if path == "placed":
        return me.group.broadcast(mine, root=me.size - 1).tobytes()
    if path == "mapped":
        buffer = me.group.empty(len(mine), np.float32)
        buffer[:] = mine
        return me.group.all_reduce(buffer).tobytes()
    try:
        me.group.all_reduce(mine, out=mine)
    except GroupError:
        assert mine.tobytes() == before
        raise
    return mine.tobytes()


def call_with_fault(me, *, path, kind, stage, moment, chunk, seed, victim):
    """Make two calls, in the second of which one rank fails, and a barrier; return how the last two ended."""
    right = expected(path, seed, me.size)
    assert call(me, path, seed) == right
    sequence = me.group._link._native.sequence + 1
    if kind == "stop":
        me.group._link.timeout_seconds = _DEADLINE_S

    def hook(*at):
        # At a decision there is one rank only: whoever came last.
        if at == (stage, moment, sequence, chunk) and (moment == "decided" or me.rank == victim):
            me.fail(kind)

    def the_call():
        assert call(me, path, seed) == right

    _native.set_stage_hook(hook)
    how = told(the_call, also=(RuntimeError,))
    me.settle()
    _native.set_stage_hook(None)
    return how, told(me.group.barrier)


def worlds_of(kind, path):
    """Return a world for every point and seed, with what is decided there."""
    for seed in range(SEEDS):
        draw = random.Random(f"{kind} {path} {seed}")
        for stage, moment, chunk, is_decided in points(path):
            size = draw.choice((2, 2, 3, 3, 4, 5, 8))
            arguments = {"path": path, "kind": kind, "stage": stage, "moment": moment, "chunk": chunk, "seed": seed}
            yield World(call_with_fault, size, {**arguments, "victim": draw.randrange(size)}), is_decided


def check(world, ended, kind, *, is_decided):
    """Assert that the ranks of a world have told one story, and that the fault has happened."""
    what = f"{world.size} ranks, {world.arguments}"
    assert all(one.error is None for one in ended), (what, ended)
    victims = [one.rank for one in ended if one.value is None or one.value[0][0] == "RuntimeError"]
    stories = {one.value for one in ended if one.value is not None and one.rank not in victims}
    assert len(stories) == 1, (what, stories)
    ((how, after),) = stories
    assert (how == "done") == is_decided, (what, how)
    if kind == "stop":
        assert len([one for one in ended if one.value]) == world.size, what
        victims = [rank for rank in range(world.size) if f"Rank {rank}," in str(after)]
    (victim,) = victims
    if moment_is_anyones(world) is False:
        assert victim == world.arguments["victim"], what
    for story in (how, after):
        if story != "done":
            assert f"Rank {victim}" in story[1], (what, story)
            assert _LOST[kind] in story[1], (what, story)
    assert after == how or is_decided, (what, how, after)
    if kind in ("kill", "segfault"):
        assert ended[victim].signal == (signal.SIGKILL if kind == "kill" else signal.SIGSEGV), what


def moment_is_anyones(world):
    """Tell whether any rank may be the one that fails: whoever comes last to a meeting."""
    return world.arguments["moment"] == "decided"


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("kind", _LOST)
class TestFault:
    def test_all_others_tell_one_story_of_whole_outputs(self, request, ranks, kind, path):
        """They all return the right result, or all raise one sentence that names the rank; outputs are as they were."""
        worlds = list(worlds_of(kind, path))
        seconds = []
        for (world, is_decided), ended in zip(
            worlds, ranks.run_all([one for one, _ in worlds], _AT_ONCE.get(kind, 4)), strict=True
        ):
            check(world, ended, kind, is_decided=is_decided)
            seconds += [one.seconds_after for one in ended if one.value and one.seconds_after and not is_decided]
        with contextlib.suppress(statistics.StatisticsError):
            found = statistics.median(seconds), max(seconds)
            request.node.user_properties.append(("seconds until told, median and most", found))


class TestPoints:
    def test_every_kind_of_fault_has_sixty_points(self):
        """The faults of this file are more than 300, and 5,000 in a long run."""
        assert len(_LOST) * sum(len(points(path)) for path in PATHS) > 300
