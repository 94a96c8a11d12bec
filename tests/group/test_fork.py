"""Ranks that fork: the child is no rank, also in the middle of a call, and reads results for ever."""

import os
import pickle
import signal
import time

import numpy as np
from rank_processes import World, told

_LARGE = 40_000


def mine(me, offset=0):
    return np.full(_LARGE, 2**me.rank + offset, np.float32)


def in_child(action):
    """Return what the action returns in a forked child."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(write, pickle.dumps(action()))
        finally:
            os._exit(0)
    os.close(write)
    with open(read, "rb") as pipe:
        data = pipe.read()
    os.waitpid(pid, 0)
    return pickle.loads(data)


def fork_and_use(me):
    result = me.group.all_reduce(mine(me))
    said = in_child(lambda: (told(me.group.barrier), told(me.group.all_reduce, mine(me)), told(me.group.close)))
    me.group.barrier()
    return said, float(result[0]), float(me.group.all_reduce(mine(me))[-1])


def fork_and_read(me):
    """Read a result in a child while its parent makes as many results as there are areas, and closes the group."""
    result = me.group.all_reduce(mine(me))
    right = result.copy()
    go, gone = os.pipe()

    def read():
        os.close(gone)
        os.read(go, 1)
        return bool((result == right).all())  # noqa: F821 - which the child still has

    report, write = os.pipe()
    if os.fork() == 0:
        os.write(write, pickle.dumps(read()))
        os._exit(0)
    kept = result if me.rank else None
    del result
    for turn in range(1, 80):
        assert me.group.all_reduce(mine(me, turn))[3] == 2**me.size - 1 + me.size * turn
    me.group.close()
    assert kept is None or (kept == right).all()
    for descriptor in (gone, go, write):
        os.close(descriptor)
    os.wait()
    with open(report, "rb") as pipe:
        return pickle.loads(pipe.read())


def fork_in_handler(me):
    """Wait in a call while a signal handler forks."""
    parent, (read, write) = os.getpid(), os.pipe()
    signal.signal(signal.SIGALRM, lambda *_: os.fork())
    if me.rank == 1:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
    else:
        time.sleep(0.2)
    story = told(me.group.barrier)
    if os.getpid() != parent:
        os.write(write, pickle.dumps(story))
        os._exit(0)
    os.close(write)
    me.group.barrier()
    if me.rank == 1:
        os.wait()
    with open(read, "rb") as pipe:
        return story, pipe.read()


_FORKED = "This process was forked from rank 1 and is no rank itself."


class TestFork:
    def test_a_child_cannot_use_the_group_and_its_parent_can(self, ranks):
        for one in ranks.run(World(fork_and_use, 3)):
            (first, second, third), before, after = one.value
            assert first == second
            assert "was forked from rank" in first[1]
            assert third == "done"
            assert (before, after) == (7.0, 7.0)

    def test_a_child_reads_results_for_ever(self, ranks):
        """The areas that it was forked with are not used again, whatever its parent does."""
        assert [one.value for one in ranks.run(World(fork_and_read, 2))] == [True, True]

    def test_a_child_made_by_a_signal_handler_leaves_the_call(self, ranks):
        ended = ranks.run(World(fork_in_handler, 2))
        assert [one.value[0] for one in ended] == ["done"] * 2, ended
        assert pickle.loads(ended[1].value[1])[1].startswith(_FORKED)
