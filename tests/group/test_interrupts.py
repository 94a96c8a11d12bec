"""Ranks that are interrupted, or have no memory, in the middle of a call: the others are told."""

import os
import signal
import time

import numpy as np
import pytest
from rank_processes import World, told

from treefold import _native
from treefold.errors import GroupError
from treefold.execution import native
from treefold.group import collectives
from treefold.group.reductions import Reductions
from treefold.group.transport import link


def interrupt_where_it_waits(me, *, path, stage):
    """Interrupt rank 1 while it waits in a meeting for rank 0, which comes when rank 1 was interrupted."""
    values = np.full({"small": 10, "staged": 680_000}[path], 2**me.rank, np.float32)
    me.group.all_reduce(values)
    pids = me.group._link.agree(b"p" * 24, os.getpid().to_bytes(4, "little"), description="pids")

    def hook(at_stage, moment, sequence, chunk):
        del sequence, chunk
        if me.rank == 0 and (at_stage, moment) == (stage, "before") and not me.flag(0):
            me.flag(0, 1)
            time.sleep(0.05)
            os.kill(int.from_bytes(pids[1], "little"), signal.SIGINT)
            me.wait_flag(1)

    _native.set_stage_hook(hook)
    before = values.copy()
    story = told(lambda: me.group.all_reduce(values, out=values))
    assert (values == before).all()
    if me.rank == 1:
        me.flag(1, 1)
    _native.set_stage_hook(None)
    return story, told(me.group.barrier)


def table(me):
    return np.full((3, 14_000), 2**me.rank, np.float32)


class Interrupting:
    """A value that presses Ctrl-C while it is read: when it is asked whether it is an array."""

    @property
    def __class__(self):
        raise KeyboardInterrupt


CALLS = {
    "all_reduce": lambda group, value: group.all_reduce(value),
    "reduce_scatter": lambda group, value: group.reduce_scatter(value),
    "broadcast": lambda group, value: group.broadcast(value, root=0),
    "all_gather": lambda group, value: group.all_gather(value, axis=1),
}


def interrupt_while_it_reads(me, *, call):
    """Interrupt rank 1 while it reads its value; it goes on without a group, while the others are told."""
    me.group.barrier()
    story = told(CALLS[call], me.group, [Interrupting()] if me.rank == 1 else table(me))
    me.flag(me.rank, 1)
    me.wait_flag(0)
    me.wait_flag(2)
    return story, told(me.group.barrier)


def time_out(_):
    raise TimeoutError("an alarm")


class Halves:
    """Makes a call of two parts."""

    def __init__(self, group):
        self._link, self._reductions = group.link, Reductions(group.link)

    @link.one_call
    def all_reduce(self, value, between):
        for half in self._link.parts(np.split(value, 2)):
            self._reductions.all_reduce(half, "sum", out=half)
            between(half)


def fail_between_parts(me):
    """Let an alarm go off on rank 1 between the parts of a call; then call again."""
    with pytest.raises((TimeoutError, GroupError)) as caught:
        Halves(me.group).all_reduce(np.ones(6), time_out if me.rank == 1 else id)
    if me.rank != 1:
        assert caught.value.__notes__ == ["Parts of this call were done before, 1 of them: what they write is new."]
    return (caught.typename, str(caught.value)), told(me.group.barrier)


def lack_memory_for_a_result(me, *, call):
    """Let rank 1 have no memory for what it is to receive; then call again."""

    def refuse(*_):
        raise MemoryError("no memory for a result")

    me.group.barrier()
    real = native.new_result
    native.new_result = refuse if me.rank == 1 else real
    try:
        CALLS[call](me.group, table(me))
        story = "done", ""
    except (MemoryError, GroupError) as error:
        story = type(error).__name__, str(error)
    native.new_result = real
    return story, told(CALLS[call], me.group, table(me))


class TestInterrupts:
    @pytest.mark.parametrize(
        ("path", "stage"),
        [("small", "meet_first"), ("staged", "meet_first"), ("staged", "meet"), ("staged", "meet_commit")],
    )
    def test_a_rank_that_waits_stops_at_once_and_the_others_are_told(self, ranks, path, stage):
        ended = ranks.run(World(interrupt_where_it_waits, 3, {"path": path, "stage": stage}))
        assert all(one.value for one in ended), ended
        assert ended[1].value[0] == "KeyboardInterrupt", ended
        assert ended[1].value[1][1] == (
            "This group is closed. After close(), or an error or Ctrl-C in a call, connect again on all ranks: "
            "`group = treefold.connect()`."
        )
        stories = {*ended[0].value, *ended[2].value}
        assert len(stories) == 1, stories
        ((name, sentence),) = stories
        assert name == "PeerLostError"
        assert sentence == (
            "Rank 1 was interrupted, so this call did not happen: outputs are as they were. This group is over; "
            "connect again on all ranks: `treefold.connect()`, or `init_process_group` for PyTorch's process groups."
        )

    @pytest.mark.parametrize("call", ["all_reduce", "broadcast", "all_gather"])
    def test_a_rank_that_is_interrupted_while_it_reads_its_value_tells_the_others(self, ranks, call):
        """They wait for it already; it has left the group, whatever its program does next."""
        ended = ranks.run(World(interrupt_while_it_reads, 3, {"call": call}))
        assert ended[1].value[0] == "KeyboardInterrupt", ended
        assert ended[1].value[1][1].startswith("This group is closed."), ended
        assert ended[0].value == ended[2].value, ended
        (name, sentence), again = ended[0].value
        assert name == "PeerLostError"
        assert sentence.startswith("Rank 1 was interrupted"), sentence
        assert again == (name, sentence)

    def test_a_rank_whose_signal_handler_raises_between_two_parts_leaves(self, ranks):
        """Its next message would pass for the second part."""
        ended = ranks.run(World(fail_between_parts, 3))
        assert ended[1].value[0][0] == "TimeoutError", ended
        assert ended[1].value[1][1].startswith("This group is closed."), ended
        assert ended[0].value == ended[2].value, ended
        (name, sentence), again = ended[0].value
        assert again == (name, sentence)
        assert name == "PeerLostError"
        assert sentence.startswith("Rank 1 has left the group with an error"), sentence


def call_between_operations(me):
    """Let a signal handler call between two operations of rank 1's call."""
    real, heard = collectives._check_rooms, []

    def interrupted(*given, **options):
        if not heard:
            signal.raise_signal(signal.SIGUSR1)
        return real(*given, **options)

    signal.signal(signal.SIGUSR1, lambda *_: heard.append(told(me.group.barrier)))
    with pytest.MonkeyPatch.context() as patched:
        if me.rank == 1:
            patched.setattr(collectives, "_check_rooms", interrupted)
        story = told(me.group.all_gather, table(me))
    return story, heard, told(me.group.barrier)


class TestSecondCalls:
    def test_between_two_operations_of_a_call_are_refused(self, ranks):
        ended = ranks.run(World(call_between_operations, 2))
        assert ended[0].value == ("done", [], "done"), ended
        story, [(name, sentence)], again = ended[1].value
        assert (story, again) == ("done", "done")
        assert name == "GroupError"
        assert sentence.startswith("This group is in the middle of "), sentence


class TestMemory:
    def test_a_rank_without_memory_before_it_has_told_anything_refuses_the_call(self, ranks):
        """It raises MemoryError; all others hear of it at once, and the group goes on."""
        ended = ranks.run(World(lack_memory_for_a_result, 3, {"call": "reduce_scatter"}))
        assert [one.value[1] for one in ended] == ["done"] * 3, ended
        assert ended[1].value[0] == ("MemoryError", "no memory for a result")
        assert ended[0].value[0] == ended[2].value[0]
        sentence = "Rank 1 could not make this call: no memory for a result. Nothing was done, on no rank."
        assert ended[0].value[0] == ("CallMismatchError", sentence)

    def test_a_rank_without_memory_in_the_middle_of_a_call_leaves(self, ranks):
        ended = ranks.run(World(lack_memory_for_a_result, 3, {"call": "all_gather"}))
        assert ended[1].value[0] == ("MemoryError", "no memory for a result")
        assert ended[1].value[1][1].startswith("This group is closed."), ended
        for story, again in (ended[0].value, ended[2].value):
            assert story == again
            assert story[0] == "PeerLostError"
            assert story[1].startswith("Rank 1 has left the group with an error"), story
