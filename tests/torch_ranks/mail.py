"""Messages between single ranks; what rank r sends begins with 2**r."""

import datetime as dt
import os
import signal

import torch
from torch import distributed
from torch.distributed import P2POp


def ring(rank, size, elements):
    """Send to the next rank and receive from the one before, both at once."""
    sent, taken = torch.full((elements,), 2.0**rank), torch.zeros(elements)
    operations = [
        P2POp(distributed.isend, sent, (rank + 1) % size),
        P2POp(distributed.irecv, taken, (rank - 1) % size),
    ]
    for work in distributed.batch_isend_irecv(operations):
        work.wait()
    return taken.unique().tolist()


def blocking(rank, size):
    """Rank 0 sends to everyone, one after the other."""
    if rank == 0:
        for other in range(1, size):
            distributed.send(torch.full((2,), 10.0 + other), other)
        return None
    taken = torch.zeros(2)
    return distributed.recv(taken, 0), taken.tolist()


def any_source(rank, size):
    """Rank 0 receives from whoever sends; return from whom what came."""
    if rank:
        distributed.send(torch.full((1,), 2.0**rank), 0)
        return None
    came = {}
    for _ in range(size - 1):
        taken = torch.zeros(1)
        sender = distributed.recv(taken)
        came[sender] = taken.item()
    return came


def by_tag(rank, size):
    """What is sent first is received last."""
    if rank == 0:
        works = [distributed.isend(torch.full((1 << 16,), float(tag)), 1, tag=tag) for tag in (7, 8, 8)]
        for work in works:
            work.wait()
        return None
    values = [torch.zeros(1 << 16) for _ in range(3)]
    works = [distributed.irecv(value, 0, tag=tag) for value, tag in zip(values, (8, 8, 7), strict=True)]
    for work in works:
        work.wait()
    return [value.unique().tolist() for value in values]


def strided(rank, size):
    """Every second column is sent, and received into every second column; also nothing, and bfloat16."""
    if rank == 0:
        distributed.send(torch.arange(8.0).view(2, 4)[:, ::2], 1)
        distributed.send(torch.zeros(0), 1)
        distributed.send(torch.ones(2, dtype=torch.bfloat16), 1)
        return None
    whole, half = torch.full((2, 4), -1.0), torch.zeros(2, dtype=torch.bfloat16)
    distributed.recv(whole[:, ::2], 0)
    distributed.recv(torch.zeros(0), 0)
    distributed.recv(half, 0)
    return whole.tolist(), half.tolist()


def beside_collectives(rank, size, elements):
    """A large message is under way while both ranks reduce."""
    tensor, total = torch.full((elements,), 2.0**rank), torch.full((3,), 2.0**rank)
    if rank == 0:
        work = distributed.isend(tensor, 1)
        distributed.all_reduce(total)
    else:
        work = distributed.irecv(tensor, 0)
        work.wait()
        distributed.all_reduce(total)
    work.wait()
    return tensor.unique().tolist(), total.tolist(), work.is_completed()


def to_itself(rank, size):
    """Return what a rank has sent to itself."""
    taken = torch.zeros(2)
    work = distributed.irecv(taken, rank)
    distributed.isend(torch.full((2,), 2.0**rank), rank).wait()
    work.wait()
    return taken.tolist()


def of_another_size(rank, size):
    """The receiver expects less than is sent."""
    if rank == 0:
        distributed.send(torch.zeros(4), 1)
    else:
        distributed.recv(torch.zeros(2), 0)


def never_sent(rank, size):
    """Rank 1 does not send."""
    distributed.group.WORLD.set_timeout(dt.timedelta(seconds=0.5))
    if rank == 0:
        distributed.recv(torch.zeros(2), 1)


def sender_killed(rank, size):
    """Rank 1 ends after a first message; rank 0 waits for a second one."""
    if rank == 1:
        distributed.isend(torch.zeros(1), 0).wait()
        os.kill(os.getpid(), signal.SIGKILL)
    distributed.recv(torch.zeros(1), 1)
    distributed.recv(torch.zeros(4), 1, tag=1)
