"""Messages between single ranks; what rank r sends begins with 2**r."""

import contextlib
import datetime as dt
import os
import signal
import tempfile
import threading
import time

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
    try:
        if rank == 0:
            distributed.group.WORLD.set_timeout(dt.timedelta(seconds=0.5))
            distributed.recv(torch.zeros(2), 1)
    finally:
        distributed.barrier()


def sender_killed(rank, size):
    """Rank 1 ends after a first message; rank 0 waits for a second one."""
    if rank == 1:
        distributed.isend(torch.zeros(1), 0).wait()
        os.kill(os.getpid(), signal.SIGKILL)
    distributed.recv(torch.zeros(1), 1)
    distributed.recv(torch.zeros(4), 1, tag=1)


def refused(rank, size, what):
    """Messages that cannot be sent or received; then one that can."""
    sent, overlapping, freed = torch.zeros(2), torch.zeros(1).expand(4), torch.zeros(4)
    freed.untyped_storage().resize_(0)
    calls = {
        "tag": lambda: distributed.isend(sent, 1 - rank, tag=1 << 63),
        "word": lambda: distributed.isend(sent, 1 - rank, tag="a"),
        "peer": lambda: distributed.isend(sent, 7),
        "overlapping": lambda: distributed.irecv(overlapping, 1 - rank),
        "windows": lambda: distributed.irecv(torch.zeros(4).as_strided((3, 2), (1, 1)), 1 - rank),
        "freed": lambda: distributed.isend(freed, 1 - rank),
    }
    try:
        calls[what]()
    except Exception as error:  # noqa: BLE001 - returned
        return type(error).__name__, str(error), ring(rank, size, 2)
    return None


def staged(rank, size):
    """Rank 0 refills what it has sent before anyone receives it; rank 1 reads its tensor before all has come."""
    tensor = torch.full((1 << 20,), 2.0**rank)
    if rank == 0:
        work = distributed.isend(tensor, 1)
        tensor.fill_(9.0)
        distributed.barrier()
        work.wait()
    else:
        distributed.barrier()
        distributed.recv(tensor, 0)
    return tensor.unique().tolist()


def given_up(rank, size, how):
    """Rank 1 sends when rank 0 has given up receiving, and refilled its tensor; then both send once more."""
    tensor = torch.zeros(3)
    if rank == 0:
        work = distributed.irecv(tensor, 1)
        try:
            if how == "interrupt":
                signal.signal(signal.SIGALRM, signal.default_int_handler)
                signal.setitimer(signal.ITIMER_REAL, 0.2)
            work.wait(dt.timedelta(seconds=60 if how == "interrupt" else 0.2))
        except (KeyboardInterrupt, TimeoutError) as error:
            caught = type(error).__name__
        tensor.fill_(9.0)
    distributed.barrier()
    if rank == 0:
        second = torch.zeros(3)
        distributed.recv(second, 1)
        return caught, tensor.tolist(), second.tolist()
    distributed.send(torch.full((3,), 2.0), 0)
    return None


def torn(rank, size, elements):
    """Rank 1 is killed in the middle of a message; return whether rank 0's tensor is as it was."""
    numbers = [None] * size
    distributed.all_gather_object(numbers, os.getpid())
    tensor = torch.full((elements,), 9.0)
    if rank == 1:
        distributed.isend(tensor, 0)
        threading.Event().wait(60)
    work = distributed.irecv(tensor, 1)
    group = distributed.group.WORLD
    while not group._mailbox._inbox._asked:
        time.sleep(0.0001)
    os.kill(numbers[1], signal.SIGKILL)
    try:
        work.wait()
    except ConnectionError as error:
        return type(error).__name__, tensor.unique().tolist()
    return None


def callbacks(rank, size):
    """Callbacks that wait for other messages and for a collective, one that raises, and what comes after them."""
    if rank == 0:
        for tag in range(5):
            distributed.send(torch.full((1,), float(tag)), 1, tag=tag)
        distributed.all_reduce(torch.ones(1))
        return None
    tensors, total, done = torch.zeros(5, 1), torch.ones(1), threading.Event()
    works = [distributed.irecv(tensor, 0, tag=tag) for tag, tensor in enumerate(tensors[:4])]

    def wait(_):
        works[1].wait()
        works[2].get_future().wait()
        distributed.recv(tensors[4], 0, tag=4)
        distributed.all_reduce(total)
        done.set()

    works[0].get_future().add_done_callback(wait)
    works[0].get_future().add_done_callback(lambda _: 1 / 0)
    works[3].wait()
    said = works[3].get_future().wait()[0].item()
    return done.wait(10), tensors.flatten().tolist(), total.item(), said


def failed_future(rank, size):
    """Rank 1 has ended; return what a callback of rank 0's message gets."""
    distributed.barrier()
    if rank == 1:
        distributed.send(torch.zeros(1), 0)
        return None
    work = distributed.irecv(torch.zeros(4), 1, tag=1)
    future = work.get_future().then(lambda one: one.value())
    distributed.recv(torch.zeros(1), 1)
    try:
        return future.wait()
    except RuntimeError as error:
        return str(error)


def thousands(rank, size, count):
    """Return whether so many messages at once, of many tags and of one, come right and in time."""
    begin = time.monotonic()
    for tags in (range(count), [0] * count):
        tensors = [torch.full((1,), float(number * rank)) for number in range(count)]
        call = distributed.isend if rank else distributed.irecv
        for work in [call(tensor, 1 - rank, tag=tag) for tensor, tag in zip(tensors, tags, strict=True)]:
            work.wait()
        assert torch.cat(tensors).tolist() == list(range(count))
    return time.monotonic() - begin < 20


def thousands_given_up(rank, size, count):
    """Nobody receives what rank 0 sends, or sends what it wants; then both send once more."""
    group = distributed.group.WORLD
    ring(rank, size, 1)
    if rank == 0:
        group.set_timeout(dt.timedelta(seconds=0.2))
        tensor = torch.zeros(1)
        works = [call(tensor, 1, tag=tag) for tag in range(1, count) for call in (distributed.isend, distributed.irecv)]
        for work in works:
            with contextlib.suppress(TimeoutError):
                work.wait()
        mailbox = group._mailbox
        while mailbox._waiting():
            time.sleep(0.01)
        group.set_timeout(dt.timedelta(seconds=20))
    distributed.barrier()
    return ring(rank, size, 2), len(group._mailbox._inbox._offers)


def without_first(rank, size):
    """Rank 0, which holds PyTorch's store, ends; the others exchange their first message."""
    distributed.barrier()
    if rank == 0:
        os._exit(0)
    time.sleep(0.3)
    tensor = torch.full((2,), 2.0**rank)
    distributed.send(tensor, 2) if rank == 1 else distributed.recv(tensor, 1)
    return tensor.tolist()


def without_a_folder(rank, size):
    """There is no folder for temporary files when the ranks first send."""
    tempfile.tempdir = "/nowhere"
    return ring(rank, size, 2)


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


def parent_killed(rank, size):
    """Rank 1 is killed, and its child lives on; return how long rank 0 took to see it."""
    ring(rank, size, 2)
    if rank == 1:
        if os.fork() == 0:
            time.sleep(20)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)
    begin = time.monotonic()
    try:
        distributed.recv(torch.zeros(2), 1)
    except ConnectionError:
        return time.monotonic() - begin < 15
    return None


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


def again_after_giving_up(rank, size):
    """Rank 0 gives its first message up before rank 1 wants any, and sends another one."""
    distributed.barrier()
    tensor = torch.full((3,), -1.0)
    if rank == 0:
        distributed.irecv(torch.zeros(1), 1, tag=9)  # so that it listens
        with contextlib.suppress(TimeoutError):
            distributed.isend(torch.full((3,), 1.0), 1).wait(dt.timedelta(seconds=0.3))
        distributed.barrier()
        distributed.send(torch.full((3,), 2.0), 1)
        return None
    distributed.send(torch.zeros(1), 0, tag=9)
    distributed.barrier()
    distributed.recv(tensor, 0)
    return tensor.tolist()
