"""Ranks over gloo, each as if on a host of its own, that do what users do beside their calls."""

import gc
import os
import signal
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import distributed

sys.path.append(str(Path(__file__).parent))

from fault_ranks import joined
from rank_processes import told

import treefold
from treefold.engines import gloo
from treefold.errors import ConnectError, GroupError
from treefold.group.bootstrap import connecting


def collectives_of_the_user(me, *, port):
    """Let the user's own thread all-reduce on the process group that this one has connected."""
    connecting.host_key = lambda: f"host {me.rank}"
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


def be_interrupted_while_connecting(me, *, port):
    """Interrupt rank 2 when all have come, before it has told where gloo reaches it.

    Return the error, when it came, and how long the user's store takes to answer after it.
    """
    store = distributed.TCPStore("127.0.0.1", port, timeout=timedelta(seconds=60), wait_for_workers=False)
    if me.rank == 2:
        gloo.ProcessGroupGloo = _be_interrupted
    began = time.monotonic()
    try:
        joined(me, store, 60.0)
    except (ConnectError, KeyboardInterrupt) as error:
        raised, came = error, time.monotonic()
    store.check(["anything"])
    return type(raised).__name__, str(raised), came - began, time.monotonic() - came


def _be_interrupted(keys, *_):
    os.kill(os.getpid(), signal.SIGINT)
    keys.wait(["of nobody"])


def lose_two_and_name_one(me, *, port):
    """Die as ranks 2 and 3; rank 0 hears of rank 2 only, and rank 1 of both; return the errors, of two calls."""
    group = joined(me, port, 60.0)
    group.barrier()
    if me.rank in (2, 3):
        time.sleep(0.5)  # the others have left the barrier
        os.kill(os.getpid(), signal.SIGKILL)
    errors = []
    time.sleep(me.rank)  # rank 0 decides
    for lost in ([2, 3] if me.rank else [2], [2, 3]):
        with pytest.raises(GroupError) as caught:
            group.without(lost, connect_timeout_seconds=3.0)
        errors.append(caught.value.ranks or str(caught.value))
    return errors


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
