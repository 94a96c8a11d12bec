"""How ranks start and end."""

import datetime as dt
import gc
import os
import signal
import threading
import time
from pathlib import Path

import torch
from torch import distributed

from treefold.group.bootstrap import connecting
from treefold.torch.c10d import process_group


def late(rank, size, seconds):
    """The last rank comes late to a group of its own."""
    if rank == size - 1:
        threading.Event().wait(seconds)
    group = distributed.new_group()
    tensor = torch.full((1,), 2.0**rank)
    distributed.all_reduce(tensor, group=group)
    return tensor.item()


def never(rank, size):
    """The last rank does not come to a group at all."""
    if rank == size - 1:
        threading.Event().wait(8)
    else:
        distributed.new_group(timeout=dt.timedelta(seconds=4))


def never_calls(rank, size, bound):
    """The last rank comes to a group, and not to its first collective; ``bound``: what has the timeout of 2 s."""
    group, timeout = distributed.new_group(timeout=dt.timedelta(seconds=60)), dt.timedelta(seconds=2)
    options = distributed.BarrierOptions()
    if bound == "call":
        options.timeout = timeout
    else:
        group.set_timeout(timeout)
    if rank == size - 1:
        threading.Event().wait(6)
    else:
        group.barrier(options).wait()


def ends(rank, size, end):
    """The last rank ends before a group has its first collective; return what the others are told, and if soon."""
    group = distributed.new_group()
    if rank == size - 1:
        if end == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        distributed.destroy_process_group()
        return None
    begin = time.monotonic()
    try:
        distributed.barrier(group)
    except ConnectionError as error:
        return type(error).__name__, "rank 2" in str(error).lower(), time.monotonic() - begin < 20
    return None


def fails_when_all_have_come(rank, size):
    """Rank 0 fails as a group is connected, and its program goes on; return what every rank is told."""
    if rank == 0:

        def fail(*_):
            raise RuntimeError

        connecting.meet = fail
    try:
        distributed.new_group(timeout=dt.timedelta(seconds=20))
    except Exception as error:  # noqa: BLE001 - kept until the others have raised theirs
        said = type(error).__name__
    distributed.barrier()
    return said


def killed(rank, size, elements):
    """The last rank is killed in the middle of a run of calls; return how long the others took to see it."""
    tensor = torch.full((elements,), 2.0**rank)
    for step in range(1000):
        if rank == size - 1 and step == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        begin, before = time.monotonic(), tensor.clone()
        try:
            distributed.all_reduce(tensor)
        except ConnectionError as error:
            was_kept = bool((tensor == before).all())
            return type(error).__name__, str(error), was_kept, time.monotonic() - begin
        tensor.fill_(2.0**rank)
    return None


def killed_in_training(rank, size):
    """The last rank is killed while the others wait for it in a backward pass, on autograd's thread."""
    ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    if rank == size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    ddp(torch.ones(1, 4)).sum().backward()


def restarted(rank, size):
    """Ranks 1 and 2 of an earlier run were killed while they waited for rank 0, which comes last."""
    store = distributed.PrefixStore("earlier", distributed.distributed_c10d._get_default_store())
    if rank:
        store.set(f"treefold/0/here/{rank}", "")
    distributed.barrier()
    if rank == 0:
        threading.Event().wait(0.5)
    group = process_group.TreefoldProcessGroup(store, rank, size, dt.timedelta(seconds=30))
    tensor = torch.full((1,), 2.0**rank)
    group.allreduce([tensor], distributed.AllreduceOptions()).wait()
    return tensor.item()


def kept_memory(rank, size):
    """Return how many pieces of a group's memory are mapped while it is there, and when it is gone."""

    def count():
        gc.collect()
        lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
        return sum("memfd:treefold" in line for line in lines)

    before, group = count(), distributed.new_group()
    distributed.all_reduce(torch.zeros(1 << 16), group=group)
    during = count()
    distributed.destroy_process_group(group)
    del group
    return before < during, count() == before


def forked(rank, size):
    """A forked child uses its parent's group; return what it is told."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            distributed.all_reduce(torch.zeros(1))
        except RuntimeError as error:
            os.write(writing, str(error).encode())
        os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    said = os.read(reading, 1000).decode()
    distributed.barrier()
    return said
