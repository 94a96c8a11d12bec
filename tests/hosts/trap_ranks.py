"""Ranks over gloo, each as if on a host of its own, that do what users do beside their calls."""

import functools
import gc
import itertools
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
from torch import distributed

sys.path.append(str(Path(__file__).parent))

from fault_ranks import joined
from rank_processes import told

import treefold
from treefold.engines import gloo
from treefold.engines.interface import Transfer
from treefold.errors import ConnectError, GroupError
from treefold.group import connecting, joining
from treefold.group.links.protocol import VALUE_TAGS
from treefold.group.rosters import ChannelRoster, StoreRoster


def collectives_of_the_user(me, *, port):
    """Let the user's own thread all-reduce on the process group that this one has connected."""
    joining.host_key = lambda: f"host {me.rank}"
    store = distributed.TCPStore("127.0.0.1", port, timeout=timedelta(seconds=60), wait_for_workers=False)
    distributed.init_process_group("gloo", store=store, rank=me.rank, world_size=me.size)
    sums = []

    def reduce():
        for number in range(30):
            value = torch.full((5000,), 2.0**me.rank + number)
            distributed.all_reduce(value)
            sums.append(value.unique().tolist() == [2**me.size - 1 + me.size * number])

    with treefold.connect(distributed.group.WORLD) as group:
        users = threading.Thread(target=reduce)
        users.start()
        ours = [np.unique(group.all_reduce(np.full(20_000, 2.0**me.rank))).tolist() for _ in range(30)]
        users.join()
    distributed.destroy_process_group()
    return all(sums) and len(sums) == 30, ours == [[2**me.size - 1]] * 30


def lose_a_rank_beside_a_neighbour(me, *, port):
    """Ranks 0 and 1 share a host. Rank 2 dies when rank 1 has its values, so that rank 1 waits for rank 0 there."""
    group = joined(me, port, 60.0, host=max(0, me.rank - 1))
    value = np.full(200_000, 2.0**me.rank)
    group.all_reduce(value)
    if me.rank == 2:
        channel, send = group._link._channel, group._link._channel.send

        def send_to_1(peer, tag, buffer):
            if peer or tag < VALUE_TAGS:
                return send(peer, tag, buffer)
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGKILL)).start()
            return Transfer(peer, tag, buffer, is_send=True)

        channel.send = send_to_1
    story = told(lambda: group.all_reduce(value))
    me.flag(me.rank, 1)
    if me.rank == 0:
        me.wait_flag(1)  # it does not help by closing the group
    return story


def fork(me, *, port):
    """Fork rank 1 in the middle of its calls: the child tries to call and to go on, and ends as a script does."""
    group = joined(me, port, 60.0)
    group.all_reduce(np.full(3, 2.0**me.rank))
    story = ""
    if me.rank == 1:
        out, into = os.pipe()
        child = os.fork()
        if not child:
            refused = {told(call)[1] for call in (group.barrier, lambda: group.without([], connect_timeout_seconds=2))}
            os.write(into, " ".join(refused).encode())
            group.close()
            os._exit(0)
        os.close(into)
        with open(out, "rb") as pipe:  # noqa: PTH123 - a descriptor
            story = pipe.read().decode()
        os.waitpid(child, 0)
    with group.without([]) as onward:
        return story, float(onward.all_reduce(np.full(20_000, 2.0**me.rank))[0])


def fail_while_connecting(me, *, port, how, seconds=60):
    """Let a rank fail when all have come, before rank 2 has told where gloo reaches it.

    Return the error, the ranks that it names, when it came, and how long the user's store takes to answer after it.
    """
    store = distributed.TCPStore("127.0.0.1", port, timeout=timedelta(seconds=60), wait_for_workers=False)
    if me.rank == 2:
        gloo.ProcessGroupGloo = functools.partial(_fail, how)
    elif me.rank == 0 and how == "interrupt another":
        connect = gloo.ProcessGroupGloo
        gloo.ProcessGroupGloo = lambda *told: _interrupt_soon() or connect(*told)
    began = time.monotonic()
    try:
        joined(me, store, 60.0, connect_seconds=seconds)
    except (ConnectError, KeyboardInterrupt) as error:
        raised, came = error, time.monotonic()
    store.check(["anything"])
    return type(raised).__name__, str(raised), getattr(raised, "ranks", ()), came - began, time.monotonic() - came


def wait_for_a_fellow(me, *, port, victim):
    """Let a rank give up while rank 0 waits for rank 1, which shares its host and comes late; return how that ended."""
    meet = connecting.Client

    def meet_or_fail(*arguments):
        if victim == 1:
            raise MemoryError
        time.sleep(3)
        return meet(*arguments)

    connecting.Client = meet_or_fail  # what rank 1 calls
    if me.rank == victim == 0:
        connecting.Listener.gather = lambda one: time.sleep(2) or _fail("no memory", one)
    if me.rank == victim == 2:
        StoreRoster.exchange = _fail_at(StoreRoster.exchange, 3)
    began = time.monotonic()
    try:
        return told(lambda: joined(me, port, 60.0, host=(0, 0, 1)[me.rank])), time.monotonic() - began
    except MemoryError:
        return "MemoryError", time.monotonic() - began


def miss_a_fellow(me, *, port, seconds):
    """Let rank 2 end before it meets rank 1, which shares its host; return the error and whom it names."""
    if me.rank == 2:
        connecting.Client = lambda *_: os._exit(0)
    try:
        joined(me, port, 60.0, host=(0, 1, 1)[me.rank], connect_seconds=seconds)
    except ConnectError as error:
        return type(error).__name__, error.ranks
    return "done", ()


def fail_before_the_ticket(me, *, port):
    """Let rank 2 give up when the others tell each other where the ranks of a host meet; return what folders are left.

    Ranks 0 and 1 share a host.
    """
    tempfile.tempdir = tempfile.mkdtemp()
    if me.rank == 2:
        StoreRoster.exchange = _fail_at(StoreRoster.exchange, 2)
    try:
        joined(me, port, 60.0, host=(0, 0, 1)[me.rank])
    except (ConnectError, MemoryError):
        left = os.listdir(tempfile.tempdir)  # noqa: PTH208 - names
        os.rmdir(tempfile.tempdir)  # noqa: PTH106 - empty, or the test fails
        return left
    return "done"


def _fail_at(exchange, number):
    calls = itertools.count(1)

    def exchange_or_fail(*arguments):
        if next(calls) == number:
            raise MemoryError
        return exchange(*arguments)

    return exchange_or_fail


def come_after_a_death(me, *, port):
    """Kill a process of rank 2 that waits for the others, let those come, and then a new process; return their sum."""
    if me.rank < 2:
        me.wait_flag(2)
    else:
        store = distributed.TCPStore("127.0.0.1", port, timeout=timedelta(seconds=60), wait_for_workers=False)
        child = subprocess.Popen([sys.executable, Path(__file__).with_name("waiting_script.py"), str(port)])
        while not store.check(["job/0/here/2"]):
            time.sleep(0.05)
        time.sleep(0.5)
        child.kill()
        child.wait()
        me.flag(2, 1)
        time.sleep(1)  # the others find all tokens there
    with joined(me, port, 60.0, connect_seconds=20) as group:
        return float(group.all_reduce(np.full(3, 2.0**me.rank))[0])


def _fail(how, keys, *_):
    if how == "no memory":
        raise MemoryError
    if how == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "raise":
        message = "no address"
        raise RuntimeError(message)
    if how == "interrupt":
        os.kill(os.getpid(), signal.SIGINT)
    keys.wait(["of nobody"])


def _interrupt_soon():
    threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()


def fail_to_go_on(me, *, port):
    """Go on without rank 0, where rank 2 gives up once both have come; return the error, and whom it names."""
    group = joined(me, port, 60.0)
    group.barrier()
    if me.rank == 2:
        ChannelRoster.exchange = _fail_at(ChannelRoster.exchange, 1)
    try:
        return None if me.rank == 0 else group.without([0])
    except (ConnectError, MemoryError) as error:
        return str(error), getattr(error, "ranks", ())


def lose_two_and_name_one(me, *, port):
    """Die as ranks 2 and 3; the others hear of rank 2 first."""
    group = _joined_then_killed(me, port, dead=[2, 3])
    return [_go_on(me, group, [2], 3.0), _go_on(me, group, [2, 3])]


def _joined_then_killed(me, port, dead):
    """Return a group of all ranks, after which some are killed."""
    group = joined(me, port, 60.0)
    group.barrier()
    if me.rank in dead:
        time.sleep(0.5)  # the others have left the barrier
        os.kill(os.getpid(), signal.SIGKILL)
    return group


def _go_on(me, group, lost, seconds=30.0):
    """Return the size of the group without these and a sum, or whom its error names, or what it says."""
    try:
        onward = group.without(lost, connect_timeout_seconds=seconds)
    except GroupError as error:
        return error.ranks or str(error)
    return onward.size, float(onward.all_reduce(np.full(20_000, 2.0**me.rank))[0])


def drop(me, *, port):
    """Drop groups without closing them; return how many threads and descriptors there are after the first and more."""
    counts = []
    gc.disable()  # what holds itself would wait for it
    for number in range(4):
        group = joined(me, port, 60.0, f"job {number}")
        group.all_reduce(np.full(20_000, 2.0))
        group.barrier()
        del group
        until = time.monotonic() + 10
        while time.monotonic() < until and "treefold-" in "".join(one.name for one in threading.enumerate()):
            time.sleep(0.02)
        time.sleep(0.2)
        counts.append((len(threading.enumerate()), len(os.listdir("/proc/self/fd"))))  # noqa: PTH208 - counted
    return counts
