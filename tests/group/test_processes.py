"""Programs that do other things around their calls: start processes, use threads, exit."""

import contextlib
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from rank_processes import World, told

import treefold

_LARGE = 40_000


def mine(me, offset=0):
    return np.full(_LARGE, 2**me.rank + offset, np.float32)


def start_a_program(me):
    """Start a program that inherits what can be inherited; return which descriptors of a group it has."""
    code = (
        "import os; print([os.readlink(f'/proc/self/fd/{fd}') for fd in os.listdir('/proc/self/fd') if int(fd) > 2 and "
    )
    code += "os.path.exists(f'/proc/self/fd/{fd}')])"
    me.group.all_reduce(mine(me))
    said = subprocess.run(
        [sys.executable, "-c", code], close_fds=False, check=True, capture_output=True
    ).stdout.decode()
    return [word for word in ("memfd", "socket", _pipe_of(me.group)) if word in said]


def _pipe_of(group):
    return str(Path(f"/proc/self/fd/{group._link._lifeline.cut.peek()[2][0]}").readlink())


def end_before_its_child(me):
    """End rank 1 while its child lives on; the child reports whether the others heard of it meanwhile."""
    me.group.all_reduce(mine(me))
    if me.rank == 1:
        if os.fork() == 0:
            with contextlib.suppress(AssertionError):
                me.wait_flag(0)
                me.flag(1, 1)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)
    story = told(me.group.barrier)
    me.flag(0, 1)
    me.wait_flag(1)
    return story


class TestPrograms:
    def test_inherit_nothing_of_a_group(self, ranks):
        for one in ranks.run(World(start_a_program, 2)):
            assert one.value == []

    def test_a_rank_that_ends_before_its_child_is_named_at_once(self, ranks):
        """The child has inherited nothing that looks like the rank."""
        ended = ranks.run(World(end_before_its_child, 3))
        assert ended[0].value == ended[2].value, ended
        assert ended[0].value[1].startswith("Rank 1 has exited")


def call_from_two_threads(me):
    """Call in one thread while another waits in a call."""
    stories = []
    waiting = threading.Thread(target=lambda: stories.append(told(me.group.barrier)))
    if me.rank:
        waiting.start()
        while me.group._link._doing != "barrier":
            time.sleep(0.001)
        stories.append(told(me.group.all_reduce, mine(me)))
        me.flag(me.rank, 1)
        waiting.join()
    else:
        me.wait_flag(1)
        me.wait_flag(2)
        stories.append(told(me.group.barrier))
    stories.append(float(me.group.all_reduce(mine(me))[0]))
    return stories


class TestThreads:
    def test_a_second_thread_hears_at_once_that_a_call_is_under_way(self, ranks):
        ended = ranks.run(World(call_from_two_threads, 3))
        assert ended[0].value == ["done", 7.0], ended
        for one in ended[1:]:
            (name, sentence), first, total = one.value
            assert name == "GroupError"
            assert "in the middle of barrier" in sentence
            assert (first, total) == ("done", 7.0)


_SCRIPT = """
    import contextlib, sys, threading, time
    import numpy as np, treefold
    from treefold.errors import GroupError
    from treefold.group import connect
    group = connect(sys.argv[1])
    assert group.all_reduce(np.float32(2)) == 3
"""
ENDS = {
    "exits": ("", "Rank 1 has closed the group", 0),
    "raises": ("    raise ValueError", "Rank 1 has closed the group", 1),
    "raises inside with": ("    with group: raise ValueError", "Rank 1 has left the group with an error", 1),
    "forgets the group": ("    del group\n    time.sleep(20)", "Rank 1 has closed the group", None),
    "exits while a thread calls often": (
        # The thread may be told that the group is closed, before the interpreter ends it, or may not.
        "    def call():\n        with contextlib.suppress(GroupError):\n            while True: group.barrier()\n"
        "    threading.Thread(target=call, daemon=True).start()\n    time.sleep(0.3)",
        "Rank 1 has",
        0,
    ),
}


def live_with_a_script(me, *, end):
    """Be a script on rank 1, and go on until it is gone on rank 0."""
    if me.rank == 1:
        script = textwrap.dedent(_SCRIPT) + textwrap.dedent(ENDS[end][0])
        process = subprocess.Popen([sys.executable, "-c", script, me.ticket], stderr=subprocess.PIPE)
        if ENDS[end][2] is None:
            me.wait_flag(0)
            process.kill()
        errors = process.communicate()[1].decode()
        return process.returncode, errors
    me.group = treefold.connect(me.ticket)
    me.group.all_reduce(np.float32(1))
    story = "done"
    while story == "done":
        story = told(me.group.barrier)
    me.flag(0, 1)
    return story


class TestEnds:
    @pytest.mark.parametrize("end", ENDS)
    def test_whoever_ends_without_closing_is_named(self, ranks, end):
        ended = ranks.run(World(live_with_a_script, 2, {"end": end}, timeout_seconds=None))
        _, sentence, code = ENDS[end]
        assert ended[0].value[0] == "PeerLostError", ended
        assert ended[0].value[1].startswith(sentence), ended
        if code is not None:
            assert ended[1].value[0] == code, ended
            assert ("Traceback" in ended[1].value[1]) == (code == 1), ended


def read_after_close(me):
    """Keep a result, close, and read it when the others are gone."""
    result = me.group.all_reduce(mine(me))
    tree = me.group.all_reduce({"a": mine(me), "b": [mine(me)]})
    me.group.close()
    story = told(me.group.barrier), told(me.group.all_reduce, mine(me)), told(me.group.empty, 3)
    me.group = None
    gc.collect()
    if me.rank == 0:
        time.sleep(0.3)
    return float(result.sum()), float(tree["b"][0][-1]), story


class TestLifetime:
    def test_results_outlive_the_group_and_the_other_ranks(self, ranks):
        for one in ranks.run(World(read_after_close, 2)):
            total, last, stories = one.value
            assert (total, last) == (3.0 * _LARGE, 3.0)
            assert [story[1][:21] for story in stories] == ["This group is closed."] * 3
