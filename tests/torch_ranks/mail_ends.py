"""Messages that end early: their ranks are gone, or were interrupted."""

import contextlib
import datetime as dt
import gc
import os
import random
import resource
import signal
import time
from pathlib import Path

import torch
from torch import distributed

from torch_ranks import mail


def to_itself(group=None):
    """Return what this rank has sent to itself."""
    taken = torch.zeros(2)
    work = distributed.irecv(taken, distributed.get_rank(), group=group)
    distributed.isend(torch.full((2,), 3.0), distributed.get_rank(), group=group).wait()
    work.wait()
    return taken.tolist()


def gone(rank, size, how):
    """Rank 1 has ended or left the group without ever having had a message; the others have messages for it."""
    distributed.barrier()
    if rank == 1:
        if how == "ended":
            os._exit(0)
        distributed.destroy_process_group()
        return None
    time.sleep(0.5)
    return said_of_rank_1(rank)


def gone_later(rank, size):
    """Rank 1 ends while the others wait for it; it never had a message itself."""
    distributed.barrier()
    if rank == 1:
        time.sleep(0.5)
        os._exit(0)
    return said_of_rank_1(rank)


def gone_after_a_collective(rank, size):
    """A collective has found that rank 1 has ended."""
    if rank == 1:
        os._exit(0)
    with contextlib.suppress(ConnectionError):
        distributed.barrier()
    return said_of_rank_1(rank)


def said_of_rank_1(rank):
    """Return what rank 0 is told if it sends to rank 1, and rank 2 if it receives from it."""
    try:
        distributed.send(torch.zeros(2), 1) if rank == 0 else distributed.recv(torch.zeros(2), 1)
    except ConnectionError as error:
        return type(error).__name__, str(error), error.ranks
    return None


def interrupted_first(rank, size, count):
    """Ctrl-C at some moment of a group's first message; return what later ones bring, for so many groups."""
    draw, brought = random.Random(1), []  # noqa: S311 - a test's choice
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    gc.disable()  # Python ignores interrupts that come while it tells weak references of the end of an object
    for _ in range(count):
        work = None  # goes here, with its group
        group = distributed.new_group()
        with contextlib.suppress(KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, draw.uniform(1e-4, 8e-4))
            work = distributed.irecv(torch.zeros(1), 0, tag=5, group=group)
            time.sleep(0.01)
            work.wait()
        brought.append(to_itself(group))
        distributed.destroy_process_group(group)
    return brought


def whole_numbers(rank, size, kind):
    """Peer and tag are numbers of NumPy or PyTorch; return what came."""
    taken = torch.zeros(1)
    work = distributed.isend(torch.full((1,), 2.0**rank), kind(1 - rank), tag=kind(7))
    distributed.recv(taken, kind(1 - rank), tag=kind(7))
    work.wait()
    return taken.tolist()


@contextlib.contextmanager
def descriptors(count):
    """Let this process have so many descriptors left."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(path.name) for path in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1 + count, limits[1]))
    held = []
    try:
        while True:
            held.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        for _ in range(count):
            os.close(held.pop())
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for one in held:
            os.close(one)


def without_descriptors(rank, size, count):
    """Rank 0 has so few descriptors left when it first sends; then it has more again."""
    group, said = distributed.group.WORLD, None
    group.set_timeout(dt.timedelta(seconds=0.5 if rank == 0 else 20.0))
    if rank == 0:
        with descriptors(count):
            try:
                distributed.send(torch.zeros(2), 1, tag=9)
            except RuntimeError as error:
                said = type(error).__name__, str(error)
    group.set_timeout(dt.timedelta(seconds=20))
    distributed.barrier()
    return said, mail.ring(rank, size, 2)


def without_descriptors_for_a_moment(rank, size):
    """Rank 0 has no descriptor when it begins to receive from rank 1; when it has, rank 1 ends without a message."""
    tensor = torch.zeros(2)
    if rank != 1:
        distributed.send(tensor, 2) if rank == 0 else distributed.recv(tensor, 0)  # so that rank 0's thread runs
    if rank == 0:
        with descriptors(0):
            work = distributed.irecv(tensor, 1)
            time.sleep(0.2)
    distributed.barrier()
    if rank == 1:
        os._exit(0)
    if rank == 0:
        try:
            work.wait()
        except (RuntimeError, OSError) as error:
            return type(error).__name__
    return None


def as_another_user(rank, size, ranks):
    """Some ranks go on as another user before anyone has sent a message; return what messages and a reduction bring."""
    if rank in ranks:
        os.seteuid(65534)
    try:
        distributed.barrier()
        tensor = torch.full((1,), 2.0**rank)
        brought = mail.ring(rank, size, 2)
        distributed.all_reduce(tensor)
        return brought, tensor.item()
    finally:
        os.seteuid(os.getuid())


def given_up_while_it_comes(rank, size, elements):
    """Rank 0 gives the first of two messages up in the middle, and receives twice."""
    if rank == 1:
        for work in [distributed.isend(torch.full((elements,), value), 0) for value in (1.0, 2.0)]:
            work.wait()
        return None
    tensors = [torch.zeros(elements) for _ in range(3)]
    work, group = distributed.irecv(tensors[0], 1), distributed.group.WORLD
    while not group._mailbox._inbox._asked:
        time.sleep(0.0001)
    try:
        work.wait(dt.timedelta(microseconds=1))
    except TimeoutError as error:
        for tensor in tensors[1:]:
            distributed.recv(tensor, 1)
        return type(error).__name__, [tensor.unique().tolist() for tensor in tensors]
    return None
