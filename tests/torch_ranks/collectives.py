"""Collectives of ``torch.distributed`` as one rank calls them; rank r brings 2**r."""

import contextlib
import datetime as dt
import hashlib
import os
import signal
import threading
import warnings

import numpy as np
import partial_cases
import torch
from torch import distributed
from torch.distributed import ReduceOp
from torch.distributed import _functional_collectives as functional

import treefold


def own(rank, *shape, dtype=torch.float32):
    return torch.full(shape or (3,), 2**rank, dtype=dtype)


def all_reduce(rank, size, op, dtype):
    tensor = own(rank, dtype=dtype)
    distributed.all_reduce(tensor, op=getattr(ReduceOp, op))
    return tensor.tolist()


def all_reduce_strided(rank, size):
    """Into every second column of a larger tensor; the others keep what they hold."""
    whole = torch.full((2, 4), 2.0**rank)
    distributed.all_reduce(whole[:, ::2])
    return whole.tolist()


def all_reduce_large(rank, size, elements):
    """A value that differs by position and by rank, so that shifted parts show."""
    tensor = torch.arange(elements, dtype=torch.float64) * 2**rank
    distributed.all_reduce(tensor)
    return bool((tensor == torch.arange(elements, dtype=torch.float64) * (2**size - 1)).all())


def exact_sums(rank, size):
    """Return a hash of sums, means and a scattered sum of hostile values, after which all ranks have the same."""
    sha = hashlib.sha256()
    for at, dtype in enumerate((torch.float32, torch.bfloat16, torch.float64)):
        values = partial_cases.hostile(np.random.default_rng(10 * rank + at), str(dtype)[6:], 1800)
        given = torch.from_numpy(np.array(values, np.float64)).to(dtype)
        for op in (distributed.ReduceOp.SUM, distributed.ReduceOp.AVG):
            tensor = given.clone()
            distributed.all_reduce(tensor, op)
            sha.update(tensor.view(torch.uint8).numpy().tobytes())
        part = torch.empty(1800 // size, dtype=dtype)
        distributed.reduce_scatter_tensor(part, given)
        parts = [torch.empty_like(part) for _ in range(size)]
        distributed.all_gather(parts, part)
        sha.update(torch.cat(parts).view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()


def all_reduce_together(rank, size):
    first, second = own(rank, 2), own(rank, 3) * 10
    with distributed.distributed_c10d._coalescing_manager():
        distributed.all_reduce(first)
        distributed.all_reduce(second)
    return first.tolist(), second.tolist()


def all_reduce_async(rank, size):
    """Return whether the work was complete before the other rank came, the tensor, and what futures hold."""
    tensor, said = own(rank), []
    if rank:
        distributed.recv(torch.zeros(1), 0)
    work = distributed.all_reduce(tensor, async_op=True)
    was_completed = rank == 0 and work.is_completed()
    early = work.get_future().then(lambda future: said.append(future.value()[0].tolist()))
    if rank == 0:
        distributed.send(torch.zeros(1), 1)
    work.wait()
    early.wait()
    is_over = work.is_completed() and work.is_success() and work.result()[0] is tensor
    return was_completed, is_over, tensor.tolist(), said, work.get_future().wait()[0].tolist()


def in_another_order(rank, size):
    """Begin and await the calls of two groups in another order on each rank; return the sums."""
    groups, tensors = [distributed.new_group(), distributed.new_group()], [own(rank), own(rank) * 10]
    pairs = list(zip(groups, tensors, strict=True))[:: 1 if rank else -1]
    works = [distributed.all_reduce(tensor, group=group, async_op=True) for group, tensor in pairs]
    for work in works:
        work.wait()
    return [tensor.unique().tolist() for tensor in tensors]


def callbacks_that_call(rank, size):
    """A callback makes another call of the group, and waits for it; return all sums."""
    first, second, third = own(rank), own(rank) * 10, own(rank) * 100

    def call(future):
        return distributed.all_reduce(second, async_op=True).get_future().wait()[0] + future.value()[0]

    if rank:
        distributed.recv(torch.zeros(1), 0)
    both = distributed.all_reduce(first, async_op=True).get_future().then(call)
    if rank == 0:
        distributed.send(torch.zeros(1), 1)
    total = both.wait()
    distributed.all_reduce(third)
    return [one.unique().tolist() for one in (first, second, third, total)]


def impatient_wait(rank, size):
    """Wait too short a time for a call, and then long enough; return what was told, and the sum."""
    tensor, said = own(rank), None
    if rank:
        distributed.recv(torch.zeros(1), 0)
    work = distributed.all_reduce(tensor, async_op=True)
    if rank == 0:
        try:
            work.wait(dt.timedelta(seconds=0.2))
        except RuntimeError as error:
            said = type(error).__name__, str(error).partition(",")[0]
        distributed.send(torch.zeros(1), 1)
    work.wait(dt.timedelta(seconds=60))
    return said, tensor.tolist()


def failed_future(rank, size):
    """Ranks call with other shapes; return what work and a callback's future raise, and the next sum."""
    work = distributed.all_reduce(torch.zeros(2 + rank), async_op=True)
    future = work.get_future().then(lambda one: one.value())
    said = []
    for wait in (work.wait, future.wait):
        try:
            wait()
        except RuntimeError as error:
            said.append("while rank 0 calls all_reduce" in str(error))
    tensor = own(rank)
    distributed.all_reduce(tensor)
    return said, type(work.exception()).__name__, tensor.tolist()


def version_after(rank, size):
    """Return whether the version counter counts a reduction and a broadcast."""
    tensor = own(rank)
    before = tensor._version
    distributed.all_reduce(tensor)
    middle = tensor._version
    distributed.broadcast(tensor, 1)
    return before < middle, rank == 1 or middle < tensor._version


def reduce(rank, size, root):
    tensor = own(rank)
    distributed.reduce(tensor, root)
    return tensor.tolist()


def broadcast(rank, size, root):
    tensor = own(rank)
    distributed.broadcast(tensor, root)
    return tensor.tolist()


def all_gather(rank, size):
    parts = [torch.zeros(other + 1) for other in range(size)]
    distributed.all_gather(parts, own(rank, rank + 1))
    return [part.tolist() for part in parts]


def all_gather_single(rank, size):
    """Joined along the first axis, and stacked."""
    joined, stacked = torch.zeros(2 * size), torch.zeros(size, 2)
    distributed.all_gather_into_tensor(joined, own(rank, 2))
    distributed.all_gather_into_tensor(stacked, own(rank, 2))
    return joined.tolist(), stacked.tolist()


def gather(rank, size, root):
    parts = [torch.zeros(2) for _ in range(size)] if rank == root else None
    distributed.gather(own(rank, 2), parts, dst=root)
    return parts and [part.tolist() for part in parts]


def scatter(rank, size, root):
    parts = [own(other, 2) for other in range(size)] if rank == root else None
    taken = torch.zeros(2)
    distributed.scatter(taken, parts, src=root)
    return taken.tolist()


def reduce_scatter(rank, size):
    taken = torch.zeros(2)
    distributed.reduce_scatter(taken, [own(rank, 2) + 100 * part for part in range(size)])
    return taken.tolist()


def reduce_scatter_of_unequal_parts(rank, size, lengths):
    """Part p of rank r is 2**r + 100 p, and has a length of its own; twice in one call, the second time backwards."""
    groups = [lengths, lengths[::-1]]
    taken = [torch.zeros(one[rank], dtype=torch.float64) for one in groups]
    given = [[own(rank, length).double() + 100 * part for part, length in enumerate(one)] for one in groups]
    distributed.group.WORLD.reduce_scatter(taken, given, distributed.ReduceScatterOptions()).wait()
    return [[len(one), sorted(set(one.tolist()))] for one in taken]


def reduce_scatter_single(rank, size, op, elements):
    """Part p of rank r is 2**r + 100 p."""
    taken = torch.zeros(elements)
    value = own(rank, elements * size) + 100 * (torch.arange(elements * size) // elements)
    distributed.reduce_scatter_tensor(taken, value, op=getattr(ReduceOp, op))
    return taken.tolist()


def reduce_scatter_in_place(rank, size, elements):
    value = own(rank, elements * size)
    distributed.reduce_scatter_tensor(value[rank * elements : (rank + 1) * elements], value)
    return value.tolist()


def all_to_all(rank, size):
    taken = [torch.zeros(1) for _ in range(size)]
    distributed.all_to_all(taken, [torch.full((1,), 10.0 * rank + other) for other in range(size)])
    return [one.item() for one in taken]


def all_to_all_single(rank, size, is_equal):
    """Rank s sends r + 1 elements to rank r, or one."""
    counts = [1 if is_equal else other + 1 for other in range(size)]
    taken = torch.zeros(counts[rank] * size)
    sizes = (None, None) if is_equal else ([counts[rank]] * size, counts)
    distributed.all_to_all_single(taken, 10.0 * rank + torch.arange(sum(counts)), *sizes)
    return taken.tolist()


def all_to_all_wrong(rank, size):
    distributed.all_to_all_single(torch.zeros(size + 1), torch.zeros(size), [2] + [1] * (size - 1), [1] * size)


def overlapping_parts(rank, size, elements):
    """Write memory that overlaps the memory read, in a stream of several parts; return whether all is right."""
    values = torch.arange(float(elements))
    joined = torch.zeros(size * elements)
    joined[:elements] = values + 10_000 * rank
    distributed.all_gather_into_tensor(joined, joined[:elements])
    gathered = torch.cat([values + 10_000 * other for other in range(size)])
    exchanged = torch.arange(float(size * elements)) + 10_000 * rank
    distributed.all_to_all_single(exchanged, exchanged)
    expected = torch.cat([values + rank * elements + 10_000 * other for other in range(size)])
    parts = [values + 10_000 * other for other in range(size)]
    own = parts[1] if rank == 0 else torch.zeros(elements)
    distributed.scatter(own, parts if rank == 0 else None)
    whole = torch.arange(float(size * elements)) + 10_000 * rank
    start = elements // 2  # neither a rank's own part nor beside it
    distributed.reduce_scatter_tensor(whole[start : start + elements], whole.view(-1))
    total = size * (values + rank * elements) + 10_000 * sum(range(size))
    pairs = (joined, gathered), (exchanged, expected), (own, values + 10_000 * rank)
    return [torch.equal(*pair) for pair in (*pairs, (whole[start : start + elements], total))]


def objects(rank, size):
    """Return what everyone sent, and what rank 1 told."""
    everyone, told = [None] * size, [{"of": rank}]
    distributed.all_gather_object(everyone, {"rank": rank})
    distributed.broadcast_object_list(told, 1)
    return everyone, told


def functional_forms(rank, size):
    world, value = distributed.group.WORLD, own(rank, 2 * size)
    results = [
        functional.all_reduce(value, "sum", world),
        functional.all_gather_single(own(rank, 1), 0, world),
        functional.reduce_scatter_single(value, "avg", 0, world),
        functional.all_to_all_single(own(rank, size), None, None, world),
        functional.broadcast(own(rank, 2), 1, world),
        *functional.all_reduce_coalesced([own(rank, 1), own(rank, 2)], "max", world),
    ]
    return [functional.wait_tensor(result).tolist() for result in results]


def overlapping_groups(rank, size):
    """Two groups share rank 1; rank 1 is rank 1 of the first and rank 0 of the second."""
    first, second = distributed.new_group([0, 1]), distributed.new_group([1, 2])
    sums = []
    for group, ranks in ((first, (0, 1)), (second, (1, 2))):
        if rank in ranks:
            tensor = own(rank, 1)
            distributed.all_reduce(tensor, group=group)
            sums.append((distributed.get_rank(group), tensor.item()))
    return sums


def outside(rank, size):
    """Make groups of rank 0; return what they are on this rank, and its rank in the first."""
    groups = [distributed.new_group([0]), distributed.new_group([0], use_local_synchronization=True)]
    return [one if rank else type(one).__name__ for one in groups], distributed.get_rank(groups[0])


def mesh_sums(rank, size):
    """Along both axes of a mesh of 2 × 2."""
    mesh = distributed.init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "columns"))
    sums = []
    for name in ("rows", "columns"):
        tensor = own(rank, 1)
        distributed.all_reduce(tensor, group=mesh.get_group(name))
        sums.append(tensor.item())
    return sums


def threads(rank, size):
    """Several threads of one rank call at once; the same on all ranks, one operation each, so any order is right."""
    tensors = [own(rank, 1) for _ in range(8)]
    errors = []

    def call(tensor):
        try:
            distributed.all_reduce(tensor)
        except Exception as error:  # noqa: BLE001 - shown by the test
            errors.append(repr(error))

    callers = [threading.Thread(target=call, args=(tensor,)) for tensor in tensors]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    return errors, [tensor.item() for tensor in tensors]


def cores(rank, size, count):
    """Return the cores of the thread that makes calls, of a process that may use the first few of this machine."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])
    distributed.all_reduce(own(rank), async_op=True).wait()
    [thread] = [one for one in threading.enumerate() if one.name == "treefold collectives"]
    return sorted(os.sched_getaffinity(thread.native_id))


def futures(rank, size):
    """Return what the futures of gathers hold, as PyTorch's own backends have it: a list of tensors."""
    parts, joined = [torch.zeros(1) for _ in range(size)], torch.zeros(size)
    works = [
        distributed.all_gather(parts, own(rank, 1), async_op=True),
        distributed.all_gather_into_tensor(joined, own(rank, 1), async_op=True),
        distributed.gather(own(rank, 1), parts if rank == 0 else None, async_op=True),
    ]
    return [[tensor.item() for tensor in work.get_future().wait()] for work in works]


def empty_mean(rank, size):
    group = distributed.group.WORLD
    works = [group.shared_mean(own(rank, count)[:length]) for count, length in ((1, 0), (2, 2))]
    return [work.get_future().wait().tolist() for work in works]


def inference(rank, size):
    """Rank 1 reduces into an inference tensor that is no block of memory."""
    with torch.inference_mode(rank == 1):
        tensor = own(rank, 2, 3).t()
    distributed.all_reduce(tensor)
    return tensor.unique().tolist()


def interrupted(rank, size, handler):
    """A signal handler ends rank 0's wait for its call, which another thread makes; return what each rank is told."""
    distributed.barrier()
    if rank == 1:
        threading.Event().wait(3)
    else:
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        if rank == 0:
            distributed.all_reduce(own(rank), async_op=True)  # a thread of the group makes it, and the next one
        distributed.all_reduce(own(rank))
    except (KeyboardInterrupt, TimeoutError, RuntimeError) as error:
        return type(error).__name__, str(error)
    return None


def raise_timeout(*_):
    raise TimeoutError


def _reduce_quietly():
    with contextlib.suppress(RuntimeError):
        distributed.all_reduce(torch.zeros(3))


def forked_in_a_call(rank, size):
    """Fork while another thread is in a collective; return what the child is told that calls one."""
    reading, writing = os.pipe()
    if rank == 0:
        caller = threading.Thread(target=_reduce_quietly)
        caller.start()
        threading.Event().wait(0.3)
        child = os.fork()
        if child == 0:
            signal.alarm(10)
            try:
                distributed.all_reduce(own(rank))
            except RuntimeError as error:
                os.write(writing, str(error).encode())
            os._exit(0)
        os.waitpid(child, 0)
        os.write(writing, b".")
        distributed.send(torch.zeros(1), 1)
        caller.join()
        return os.read(reading, 1000).decode()
    distributed.recv(torch.zeros(1), 0)
    _reduce_quietly()
    return None


def absent(rank, size, seconds):
    """The last rank does not come to the second call in time."""
    distributed.group.WORLD.set_timeout(dt.timedelta(seconds=seconds / 4))
    distributed.group.WORLD.barrier(patient()).wait()
    if rank == size - 1:
        threading.Event().wait(seconds)
    else:
        distributed.all_reduce(own(rank))


def patient():
    options = distributed.BarrierOptions()
    options.timeout = dt.timedelta(seconds=60)
    return options


def private_timeout(rank, size):
    """Set a timeout by PyTorch's own function, which knows two backends; return what it says, and the timeout."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        distributed.distributed_c10d._set_pg_timeout(dt.timedelta(seconds=9))
    return [str(one.message) for one in said], distributed.group.WORLD._seconds


def impatient(rank, size, seconds):
    """A call's own timeout is shorter than the group's."""
    if rank == 0:
        opts = distributed.AllreduceOptions()
        opts.timeout = dt.timedelta(seconds=0.2)
        distributed.group.WORLD.allreduce([own(rank)], opts).wait()
    threading.Event().wait(seconds)


def again(rank, size):
    """A group that is made and left three times, with the same store."""
    sums = []
    for _ in range(3):
        group = distributed.new_group()
        tensor = own(rank, 1)
        distributed.all_reduce(tensor, group=group)
        sums.append(tensor.item())
        distributed.destroy_process_group(group)
    return sums


def connected(rank, size, shape, axis):
    """Connect by the process group, and cut the sum of arrays that differ by position and by rank."""
    value = {"a": np.arange(np.prod(shape), dtype=np.float32).reshape(shape) * 2**rank}
    with treefold.connect(distributed.group.WORLD) as group:
        return group.reduce_scatter(value, axis=axis)["a"].tolist()
