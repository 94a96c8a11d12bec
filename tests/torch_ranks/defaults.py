"""Methods of a process group, with the arguments that those of PyTorch's own process groups take and leave out."""

import datetime as dt
import threading
from typing import NamedTuple

import torch
from torch import distributed
from torch.distributed import ReduceOp
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from torch_ranks.collectives import own
from torch_ranks.training import bits_of, loss_of, model_of

_SOON, _SHORT = dt.timedelta(seconds=60), dt.timedelta(seconds=0.2)


class Tensors(NamedTuple):
    """The tensors that the calls of a rank read and write."""

    mine: torch.Tensor
    whole: torch.Tensor
    one: torch.Tensor
    two: torch.Tensor
    parts: list
    places: list


def tensors_of(rank):
    """Return what rank r brings, 2**r and 100 more in its second part, and room for what it gets."""
    parts = [own(rank, 1), own(rank, 1) + 100]
    return Tensors(
        own(rank, 1), torch.cat(parts), torch.zeros(1), torch.zeros(2), parts, [torch.zeros(1) for _ in "ab"]
    )


def called(rank, size):
    """Make every call of two ranks; return what it gave, and what all tensors hold then, by the call's name."""
    answers, group = {}, distributed.group.WORLD
    for name, call in CALLS.items():
        tensors = tensors_of(rank)
        try:
            gave = call(group, tensors).wait()
        except Exception as error:  # noqa: BLE001 - shown by the test
            gave = f"{type(error).__name__}: {error}"
        answers[name] = gave, [held.tolist() for held in (*tensors[:4], *tensors.parts, *tensors.places)]
    return answers


def _on_root(group, tensors):
    return tensors if group.rank() == 0 else []


def _off_root(group, tensor):
    """Return a tensor on rank 1, and a copy on rank 0, in which gloo's reduce to rank 1 leaves anything."""
    return tensor if group.rank() else tensor.clone()


_REDUCTIONS = {
    "allreduce": lambda group, t: group.allreduce([t.mine]),
    "allreduce by op": lambda group, t: group.allreduce([t.mine], ReduceOp.MAX),
    "allreduce by named op": lambda group, t: group.allreduce([t.mine], op=ReduceOp.MAX, timeout=_SOON),
    "allreduce by named options": lambda group, t: group.allreduce([t.mine], opts=distributed.AllreduceOptions()),
    "allreduce of a tensor": lambda group, t: group.allreduce(t.mine),
    "allreduce of a tensor by op": lambda group, t: group.allreduce(t.mine, ReduceOp.MAX, _SOON),
    "allreduce_coalesced": lambda group, t: group.allreduce_coalesced([t.mine, t.whole]),
    "reduce": lambda group, t: group.reduce([t.mine]),
    "reduce of a tensor": lambda group, t: group.reduce(_off_root(group, t.mine), 1, ReduceOp.MAX),
    "reduce of a tensor to a named root": lambda group, t: group.reduce(_off_root(group, t.mine), root=1),
    "reduce_scatter": lambda group, t: group.reduce_scatter([t.one], [t.parts]),
    "reduce_scatter of a tensor": lambda group, t: group.reduce_scatter(t.one, t.parts, ReduceOp.MAX),
    "reduce_scatter_single": lambda group, t: group.reduce_scatter_single(t.one, t.whole),
    "_reduce_scatter_base": lambda group, t: group._reduce_scatter_base(t.one, t.whole),
    "reduce_scatter_single_coalesced": lambda group, t: group.reduce_scatter_single_coalesced([t.one], [t.whole]),
    "reduce_scatter_tensor_coalesced": lambda group, t: group.reduce_scatter_tensor_coalesced([t.one], [t.whole]),
}
_MOVES = {
    "broadcast": lambda group, t: group.broadcast([t.mine]),
    "broadcast of a tensor": lambda group, t: group.broadcast(t.mine, 1),
    "broadcast of a tensor from a named root": lambda group, t: group.broadcast(t.mine, root=1, timeout=_SOON),
    "allgather": lambda group, t: group.allgather([t.places], [t.mine]),
    "allgather of a tensor": lambda group, t: group.allgather(t.places, t.mine, _SOON),
    "allgather_coalesced": lambda group, t: group.allgather_coalesced([[place] for place in t.places], [t.mine]),
    "all_gather_single": lambda group, t: group.all_gather_single(t.two, t.mine),
    "_allgather_base": lambda group, t: group._allgather_base(t.two, t.mine),
    "all_gather_single_coalesced": lambda group, t: group.all_gather_single_coalesced([t.two], [t.mine]),
    "allgather_into_tensor_coalesced": lambda group, t: group.allgather_into_tensor_coalesced([t.two], [t.mine]),
    "gather": lambda group, t: group.gather(_on_root(group, [t.places]), [t.mine]),
    "gather of a tensor": lambda group, t: group.gather(_on_root(group, t.places), t.mine, 0),
    "scatter": lambda group, t: group.scatter([t.one], _on_root(group, [t.parts])),
    "scatter of a tensor": lambda group, t: group.scatter(t.one, _on_root(group, t.parts), root=0),
    "alltoall": lambda group, t: group.alltoall(t.places, t.parts),
    "all_to_all_single": lambda group, t: group.all_to_all_single(t.two, t.whole, [], []),
    "all_to_all_single by timeout": lambda group, t: group.all_to_all_single(t.two, t.whole, [], [], timeout=_SOON),
    "alltoall_base": lambda group, t: group.alltoall_base(t.two, t.whole, [], []),
    "barrier": lambda group, _: group.barrier(),
    "barrier by timeout": lambda group, _: group.barrier(_SOON),
    "barrier by named timeout": lambda group, _: group.barrier(timeout=_SOON),
}
CALLS = {**_REDUCTIONS, **_MOVES}


def misplaced(rank, size):
    """Bring arguments that have no place; return what is said of them, and what a call gives after that."""
    group, said = distributed.group.WORLD, []
    for call in (
        lambda: group.allreduce_coalesced([own(rank)], ReduceOp.MAX),
        lambda: group.allreduce([own(rank)], root=1),
    ):
        try:
            call()
        except ValueError as error:
            said.append(str(error))
    total = own(rank, 1)
    distributed.all_reduce(total)
    return [*said, total.item()]


def late(rank, size):
    """Rank 1 comes later than rank 0 waits, by a timeout that stands where options may stand, too."""
    if rank == 0:
        distributed.group.WORLD.allreduce(own(rank), ReduceOp.SUM, _SHORT).wait()
    else:
        threading.Event().wait(2)
        distributed.all_reduce(own(rank))


def train_by_pytorchs_hook(rank, size, name):
    """Train a model under DDP with one of PyTorch's own hooks; return what it has learnt."""
    ddp = DistributedDataParallel(model_of(seed=rank), bucket_cap_mb=0.01)
    ddp.register_comm_hook(None, getattr(default_hooks, name))
    return _learnt(ddp, rank, steps=3)


def train_on_uneven_inputs(rank, size):
    """Train a model under DDP, with more batches on rank 1; return what it has learnt."""
    ddp = DistributedDataParallel(model_of(seed=rank), bucket_cap_mb=0.01, find_unused_parameters=True)
    with ddp.join():
        return _learnt(ddp, rank, steps=2 + rank, is_odd=lambda step: step % 2 == 0)


def _learnt(ddp, rank, steps, *, is_odd=lambda _: True):
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(ddp, rank, step, is_odd=is_odd(step)).backward()
        optimizer.step()
    return bits_of(ddp)
