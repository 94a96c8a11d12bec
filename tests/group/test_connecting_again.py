"""Ranks connect again, under every source: after they have closed a group, and after one of them has ended it."""

import contextlib
import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from launchers import MPIEXEC, TORCHRUN, launch, skip_without
from rank_processes import World, told

from treefold.errors import ConnectError, GroupError
from treefold.group import Ticket, connect

_LAUNCHERS = {
    "treefold run": [sys.executable, "-m", "treefold.cli", "run", "-n", "3"],
    "torchrun": [*TORCHRUN, "3"],
    "a process group": [*TORCHRUN, "3"],
    "mpiexec": [MPIEXEC, "-n", "3", sys.executable],
    "a communicator": [MPIEXEC, "-n", "3", sys.executable],
}
_SETUP = {
    "a process group": "from torch import distributed; distributed.init_process_group('gloo')\n"
    "source = distributed.group.WORLD",
    "a communicator": "from mpi4py import MPI; source = MPI.COMM_WORLD",
}
_NEEDS = {"torchrun": "torch", "a process group": "torch", "mpiexec": "mpi4py", "a communicator": "mpi4py"}
_SCRIPT = """
import pathlib, sys
sys.path.append({folder!r})
import treefold
from test_connecting_again import ENDS, use
source = None
{setup}
said = []
for number, end in enumerate(ENDS):
    group = treefold.connect(source, connect_timeout_seconds=60)
    said.append(use(group, number, end))
pathlib.Path(sys.argv[1], str(group.rank)).write_text(repr(said))
"""
_BACKEND = """
import pathlib, sys
import torch
from torch import distributed
import treefold.torch
said = []
for number in range(3):
    distributed.init_process_group("treefold")
    rank = distributed.get_rank()
    tensor = torch.full((1,), 10.0**number * 2**rank)
    distributed.all_reduce(tensor)
    said.append(tensor.item())
    distributed.destroy_process_group()
pathlib.Path(sys.argv[1], str(rank)).write_text(repr(said))
"""
#: How a group ends that is followed by another one; of three ranks, rank 1 ends it.
ENDS = ("closed", "failed", "interrupted")


def fail():
    raise ValueError


def use(group, number, end):
    """Reduce, and end the group; return the sum, and what has ended it on this rank."""
    total = float(group.all_reduce(np.float32(10**number * 2**group.rank)))
    try:
        with group:
            if end == "failed" and group.rank == 1:
                fail()
            if end == "interrupted" and group.rank == 1:
                threading.Timer(0.3, os.kill, [os.getpid(), signal.SIGINT]).start()
            elif end == "interrupted":
                time.sleep(1)
            if end != "closed":
                group.barrier()
    except (ValueError, KeyboardInterrupt, GroupError) as error:
        return total, type(error).__name__
    return total, "closed"


def expected(rank):
    others = ("ValueError", "KeyboardInterrupt") if rank == 1 else ("PeerLostError",) * 2
    return [(7.0 * 10**number, end) for number, end in enumerate(("closed", *others))]


def use_one_after_the_other(me):
    return [use(connect(me.ticket, connect_timeout_seconds=30), number, end) for number, end in enumerate(ENDS)]


def connect_often(me, *, times):
    """Connect and leave at once, so that ranks are at different groups."""
    totals = set()
    for _ in range(times):
        with connect(me.ticket, connect_timeout_seconds=30) as group:
            totals.add(float(group.all_reduce(np.float32(2**me.rank))))
    return totals


def connect_without_a_dead_rank(me):
    """Connect, lose rank 0, and connect again, where nobody replaces it; return both errors."""
    group = connect(me.ticket, connect_timeout_seconds=30)
    group.barrier()
    if me.rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    lost = told(group.barrier)[0]
    group.close()
    began = time.monotonic()
    try:
        connect(me.ticket, connect_timeout_seconds=0.5)
    except ConnectError as error:
        return lost, error.ranks, time.monotonic() - began < 5
    return None


def replace_a_dead_rank(me):
    """Let a child be rank 1 first, which is killed in a call; then connect again, as rank 1 in its stead."""
    if me.rank == 1 and os.fork() == 0:
        connect(me.ticket, connect_timeout_seconds=30).barrier()
        os.kill(os.getpid(), signal.SIGKILL)
    if me.rank == 1:
        os.wait()
    else:
        with connect(me.ticket, connect_timeout_seconds=30) as group:
            group.barrier()
            told(group.barrier)
    me.group = connect(me.ticket, connect_timeout_seconds=30)
    return float(me.group.all_reduce(np.float32(2**me.rank)))


def replace_a_rank_that_was_killed_while_it_waited(me, *, left):
    """Let a child be rank 0 first, which is killed where it has left this socket; rank 1 comes before the next one."""
    door = Path(Ticket.read(me.ticket).address)
    if me.rank == 0:
        child = os.fork()
        if child == 0:
            with contextlib.suppress(ConnectError):
                connect(me.ticket, connect_timeout_seconds=30)
            os._exit(1)
        while not door.exists():
            time.sleep(0.01)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        door.rename(door.with_name(left))
        me.flag(0, 1)
        time.sleep(0.5)
    else:
        me.wait_flag(0)
    me.group = connect(me.ticket, connect_timeout_seconds=30)
    return float(me.group.all_reduce(np.float32(2**me.rank)))


def come_late(me):
    """Connect without rank 2, in vain; then again, with it."""
    if me.rank == 2:
        me.wait_flag(0)
        me.wait_flag(1)
    else:
        with pytest.raises(ConnectError):
            connect(me.ticket, connect_timeout_seconds=0.3)
        me.flag(me.rank, 1)
        time.sleep(0.2)
    me.group = connect(me.ticket, connect_timeout_seconds=30)
    return float(me.group.all_reduce(np.float32(2**me.rank)))


def written(script, folder, launcher):
    """Start three ranks; return what each has written into the folder."""
    path = folder / "script.py"
    path.write_text(script)
    launch(*launcher, path, folder)
    return [(folder / str(rank)).read_text() for rank in range(3)]


class TestUnderALauncher:
    @pytest.mark.parametrize("source", _LAUNCHERS)
    def test_ranks_connect_after_each_end_of_a_group(self, source, tmp_path):
        if source in _NEEDS:
            skip_without(_NEEDS[source])
        script = _SCRIPT.format(folder=str(Path(__file__).parent), setup=_SETUP.get(source, ""))
        said = written(script, tmp_path, _LAUNCHERS[source])
        assert said == [repr(expected(rank)) for rank in range(3)]

    def test_pytorchs_process_groups_follow_each_other(self, tmp_path):
        """Process groups of treefold's backend, which leave their tickets in one store under one key."""
        skip_without("torch")
        assert written(_BACKEND, tmp_path, [*TORCHRUN, "3"]) == ["[7.0, 70.0, 700.0]"] * 3


class TestWithTickets:
    def test_ranks_connect_after_each_end_of_a_group(self, ranks):
        ended = ranks.run(World(use_one_after_the_other, 3, timeout_seconds=None))
        assert [one.value for one in ended] == [expected(rank) for rank in range(3)], ended

    def test_groups_that_follow_each_other_quickly_do_not_mix(self, ranks):
        ended = ranks.run(World(connect_often, 4, {"times": 100}, timeout_seconds=None))
        assert [one.value for one in ended] == [{15.0}] * 4, ended

    def test_a_dead_rank_that_nobody_replaces_is_named_at_the_deadline(self, ranks):
        """Its remains keep the others no longer."""
        ended = ranks.run(World(connect_without_a_dead_rank, 3, timeout_seconds=None))
        assert [one.value for one in ended[1:]] == [("PeerLostError", (0,), True)] * 2, ended

    def test_a_new_process_takes_the_place_of_a_dead_rank(self, ranks):
        ended = ranks.run(World(replace_a_dead_rank, 3, timeout_seconds=None))
        assert [one.value for one in ended] == [7.0] * 3, ended

    @pytest.mark.parametrize("left", ["s", "s~"])
    def test_a_new_process_takes_the_place_of_a_rank_that_was_killed_while_it_waited(self, ranks, left):
        """Both with its door open and before. The other rank comes first, and waits."""
        ended = ranks.run(
            World(replace_a_rank_that_was_killed_while_it_waited, 2, {"left": left}, timeout_seconds=None)
        )
        assert [one.value for one in ended] == [3.0] * 2, ended

    def test_a_rank_that_was_late_meets_those_that_connect_again(self, ranks):
        ended = ranks.run(World(come_late, 3, timeout_seconds=None))
        assert [one.value for one in ended] == [7.0] * 3, ended
