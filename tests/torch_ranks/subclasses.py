"""Tensors of subclasses in collectives of ``torch.distributed``."""

import torch
from torch import distributed
from torch.distributed import _functional_collectives as functional
from torch.distributed.tensor import DTensor, Replicate

from torch_ranks.collectives import own


class Named(torch.Tensor):
    """A user's tensor class, with memory as other tensors have."""


def taken(rank, size, kind):
    """Return the results of collectives on tensors that come from a functional collective, or of a user's class."""
    world, rows = distributed.group.WORLD, torch.stack([own(rank, size) for rank in range(size)]).flatten()

    def value():
        if kind == "user's":
            return own(rank, size).as_subclass(Named)
        return functional.reduce_scatter_single(rows if rank == 0 else torch.zeros_like(rows), "sum", 0, world)

    reduced, copied, scattered, pair = value(), value(), torch.zeros(size), [value(), value()]
    gathered, exchanged, part = torch.zeros(size, size), torch.zeros(size), torch.zeros(1)
    distributed.all_reduce(reduced)
    distributed.broadcast(copied, 1)
    distributed.scatter(scattered, pair if rank == 1 else None, 1)
    distributed.all_gather(list(gathered), value())
    distributed.all_to_all_single(exchanged, value())
    distributed.reduce_scatter_tensor(part, value())
    sent = distributed.isend(value(), 1 - rank)
    distributed.recv(received := value(), 1 - rank)
    sent.wait()
    return [one.tolist() for one in (reduced, copied, scattered, gathered, exchanged, part, received)]


def refused(rank, size, call):
    """Return the errors of both ranks for a DTensor on rank 0, then the result of a further call, which must go on."""
    tensor, mesh = torch.zeros(4), distributed.init_device_mesh("cpu", (size,))
    if rank == 0:
        tensor = DTensor.from_local(tensor, mesh, [Replicate()])
    try:
        _CALLS[call](tensor, size)
    except Exception as error:  # noqa: BLE001 - returned
        caught = type(error).__name__, str(error)
    sums = own(rank, 1)
    distributed.all_reduce(sums)
    return *caught, sums.item()


_CALLS = {
    "broadcast": lambda tensor, _: distributed.broadcast(tensor, 0),
    "all_reduce": lambda tensor, _: distributed.all_reduce(tensor),
    "all_gather": lambda tensor, size: distributed.all_gather([torch.zeros(4) for _ in range(size)], tensor),
}
