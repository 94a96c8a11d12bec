"""Messages between single ranks; what rank r sends begins with 2**r."""

import contextlib
import datetime as dt
import os
import signal
import threading
import time
from pathlib import Path

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
    """Rank 0 receives from any sender; return the senders with their messages."""
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
    """Receive in the opposite order of sending."""
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


def thousands(rank, size, count):
    """Return whether this many messages at once, of many tags and of one, come right and in time."""
    begin = time.monotonic()
    for tags in (range(count), [0] * count):
        tensors = [torch.full((1,), float(number * rank)) for number in range(count)]
        call = distributed.isend if rank else distributed.irecv
        for work in [call(tensor, 1 - rank, tag=tag) for tensor, tag in zip(tensors, tags, strict=True)]:
            work.wait()
        assert torch.cat(tensors).tolist() == list(range(count))
    return time.monotonic() - begin < 20


def many_before_the_receiver_listens(rank, size, count):
    """Return whether messages of one tag come in the order in which they were sent."""
    if rank == 0:
        works = [distributed.isend(torch.tensor([float(number)]), 1) for number in range(count)]
        for work in works:
            work.wait()
        return True
    time.sleep(0.2)
    numbers = torch.zeros(count)
    for number in range(count):
        distributed.recv(numbers[number : number + 1], 0)
    return numbers.tolist() == list(range(count))


def beside_collectives(rank, size, elements):
    """A large message is under way while the ranks reduce."""
    tensor, total = torch.full((elements,), 2.0**rank), torch.full((3,), 2.0**rank)
    if rank == 0:
        work = distributed.isend(tensor, 1)
        distributed.all_reduce(total)
        work.wait()
    else:
        distributed.irecv(tensor, 0).wait()
        distributed.all_reduce(total)
    return tensor.unique().tolist(), total.tolist()


def from_a_thread(rank, size):
    """A message goes while another thread of its sender is in a collective."""
    total, tensor = torch.full((1,), 2.0**rank), torch.full((1,), 2.0**rank)
    if rank == 0:
        caller = threading.Thread(target=distributed.all_reduce, args=(total,))
        caller.start()
        time.sleep(0.2)
        distributed.send(tensor, 1)
        caller.join()
    else:
        distributed.recv(tensor, 0)
        distributed.all_reduce(total)
    return tensor.tolist(), total.tolist()


def never_sent(rank, size):
    """Rank 1 does not send a second time; return what rank 0 is told, and the sum of a collective afterwards."""
    said, total = None, torch.full((1,), 2.0**rank)
    ring(rank, size, 1)  # so that they are connected
    if rank == 0:
        try:
            distributed.irecv(torch.zeros(2), 1, tag=1).wait(dt.timedelta(seconds=0.5))
        except RuntimeError as error:
            said = str(error)
    distributed.all_reduce(total)
    return said, total.item()


def sender_killed(rank, size):
    """Rank 1 ends after a first message; rank 0 waits for a second one."""
    if rank == 1:
        distributed.isend(torch.zeros(1), 0).wait()
        os.kill(os.getpid(), signal.SIGKILL)
    distributed.recv(torch.zeros(1), 1)
    distributed.recv(torch.zeros(4), 1, tag=1)


def forked(rank, size):
    """A forked child sends; return what it is told, and what the ranks send afterwards."""
    before = ring(rank, size, 2)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            distributed.isend(torch.zeros(1), 1 - rank)
        except RuntimeError as error:
            os.write(writing, str(error).encode())
        os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    return os.read(reading, 1000).decode(), before, ring(rank, size, 2)


def without_the_others(rank, size):
    """Ranks 1 and 2 exchange messages in a group in which other ranks never have one."""
    group = distributed.new_group()
    tensor = torch.full((2,), 2.0**rank)
    if rank == 1:
        distributed.send(tensor, 2, group=group)
    elif rank == 2:
        distributed.recv(tensor, 1, group=group)
    distributed.barrier()
    return tensor.tolist()


def from_any_but_a_silent_rank(rank, size):
    """Rank 0 receives from whoever sends, and rank 1 never does."""
    tensor, sender = torch.full((1,), 2.0**rank), None
    if rank == 0:
        sender = distributed.recv(tensor)
    elif rank == 2:
        distributed.send(tensor, 0)
    distributed.barrier()
    return sender, tensor.item()


def listening(rank, size):
    """Return the addresses at which this process listens, after a message."""
    ring(rank, size, 4)
    distributed.barrier()
    own = set()
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - the folder's own descriptor is gone by then
        with contextlib.suppress(OSError):
            own.add(os.readlink(f"/proc/self/fd/{name}"))  # noqa: PTH115 - as above
    rows = [line.split() for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]]
    found = {row[1].partition(":")[0] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in own}
    distributed.barrier()
    return sorted(found)
