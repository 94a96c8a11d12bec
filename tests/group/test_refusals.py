"""A system that refuses memory, descriptors or messages: all ranks hear it, nobody crashes, a group goes on."""

import ctypes
import errno
import os

import numpy as np
import pytest
from rank_processes import World

from treefold.errors import GroupError, SharedMemoryError
from treefold.group import Ticket, connect

_LARGE = 40_000


def refuse(name, nth, error):
    """Let the system refuse the nth call of that name from here on."""
    ctypes.CDLL(os.environ["TREEFOLD_TEST_REFUSALS"]).refuse(name.encode(), nth, error)


def has_refused():
    return bool(ctypes.CDLL(os.environ["TREEFOLD_TEST_REFUSALS"]).has_refused())


def told(action, *arguments):
    """Return "done", or the class of the group's error that the action raises."""
    try:
        action(*arguments)
    except GroupError as error:
        return type(error).__name__
    return "done"


def connect_where_one_is_refused(me, *, name, nth, error, victim):
    """Connect and reduce; on one rank, the system refuses something."""
    if me.rank == victim:
        refuse(name, nth, error)

    def all_of_it():
        me.group = connect(me.ticket, connect_timeout_seconds=2, timeout_seconds=2)
        assert me.group.all_reduce(np.float32(2**me.rank)) == 2**me.size - 1

    return told(all_of_it), me.rank == victim and has_refused()


#: Calls that connecting makes, and the errors of a system that has no room.
CALLS = [
    ("memfd_create", errno.EMFILE),
    ("memfd_create", errno.ENOMEM),
    ("ftruncate", errno.EINVAL),
    ("fallocate", errno.ENOSPC),
    ("fallocate", errno.ENOMEM),
    ("mmap", errno.ENOMEM),
    ("sendmsg", errno.ENOBUFS),
    ("sendmsg", errno.ETOOMANYREFS),
    ("recvmsg", errno.ENOMEM),
    ("socket", errno.EMFILE),
    ("accept4", errno.EMFILE),
    ("accept4", errno.ECONNABORTED),
    ("pipe2", errno.EMFILE),
]
#: What a system may refuse to make once without keeping ranks from meeting: it is asked again, or done without.
_TOLERATED = {("sendmsg", errno.ETOOMANYREFS), ("accept4", errno.ECONNABORTED)}


class TestConnecting:
    @pytest.mark.parametrize(
        ("name", "error"), CALLS, ids=lambda one: one if isinstance(one, str) else errno.errorcode[one]
    )
    def test_all_ranks_hear_what_one_is_refused(self, refusing, name, error):
        cases = [{"name": name, "nth": nth, "error": error, "victim": victim} for nth in (1, 2, 3) for victim in (0, 1)]
        worlds = [World(connect_where_one_is_refused, 3, case, timeout_seconds=None, seconds=30) for case in cases]
        refused = 0
        for world, ended in zip(worlds, refusing.run_all(worlds, 6), strict=True):
            assert all(one.error is None and one.signal == 0 for one in ended), (world.arguments, ended)
            stories = {one.value[0] for one in ended}
            assert stories == {"done"} or "done" not in stories, (world.arguments, ended)
            assert stories <= {"done", "SharedMemoryError", "ConnectError", "PeerLostError"}, (world.arguments, ended)
            if any(one.value[1] for one in ended):
                refused += 1
                assert stories == {"done"} or (name, error) not in _TOLERATED, (world.arguments, ended)
        assert refused


def reduce_where_memory_is_refused(me, *, nth, path):
    """Reduce, broadcast or make an array where the system has no memory for the nth time, on all ranks; then again."""
    value = np.full(_LARGE, 2**me.rank, np.float32)
    out = np.zeros(_LARGE, np.float32) if path == "out" else None
    calls = {
        "shared result": lambda: me.group.all_reduce(value),
        "out": lambda: me.group.all_reduce(value, out=out),
        "broadcast": lambda: me.group.broadcast(value, root=0),
        "empty": lambda: me.group.empty(_LARGE),
    }
    refuse("fallocate", nth, errno.ENOSPC)
    stories = [told(calls[path])]
    assert out is None or out.any() == (stories[0] == "done")
    stories.append(has_refused())
    refuse("fallocate", 0, 0)
    assert told(calls[path]) == "done"
    assert float(me.group.all_reduce(value)[-1]) == 2**me.size - 1
    return stories


def run_out_of_areas(me):
    kept = [me.group.all_reduce(np.full(_LARGE, 2**me.rank + turn, np.float32)) for turn in range(90)]
    return all(result[7] == 3 + 2 * turn for turn, result in enumerate(kept))


class TestCalls:
    @pytest.mark.parametrize("path", ["shared result", "out", "broadcast"])
    @pytest.mark.parametrize("nth", [1, 2, 3])
    def test_all_ranks_hear_that_there_is_no_memory_for_results(self, refusing, path, nth):
        """All have the result, or all raise SharedMemoryError; the next call is right."""
        ended = refusing.run(World(reduce_where_memory_is_refused, 3, {"nth": nth, "path": path}))
        assert all(one.error is None for one in ended), ended
        assert len({one.value[0] for one in ended}) == 1, ended
        assert ended[0].value[0] in ("done", "SharedMemoryError")
        if nth == 1 and path == "out":
            assert ended[0].value[0] == "SharedMemoryError"

    def test_an_array_of_ones_own_is_refused_in_words(self, refusing):
        ended = refusing.run(World(reduce_where_memory_is_refused, 2, {"nth": 1, "path": "empty"}))
        assert [one.value for one in ended] == [["SharedMemoryError", True]] * 2, ended

    def test_results_that_nobody_lets_go_are_copied(self, ranks):
        """There are 64 areas; what is kept beyond them is right, too."""
        assert [one.value for one in ranks.run(World(run_out_of_areas, 2))] == [True, True]


class TestEmpty:
    """``group.empty``."""

    def test_of_more_than_an_address_can_tell_is_refused_in_words(self):
        with connect(Ticket.for_ranks(1)[0]) as group, pytest.raises(SharedMemoryError, match=f"refused {2**64} bytes"):
            group.empty(2**62)
