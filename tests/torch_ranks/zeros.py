"""Zeros for which PyTorch has allocated nothing, in collectives and messages."""

import torch
from torch import distributed


def zeros_without_memory(length):
    """Return zeros as autograd makes them, for which PyTorch allocates nothing."""
    weight = torch.ones(length, requires_grad=True)
    torch.sgn(weight).sum().backward()
    assert weight.grad._is_zerotensor()
    return weight.grad


def known_zeros(rank, size):
    """Zeros without memory from rank 0, where rank 1 brings ones; what has come to each rank."""
    value = torch.ones(4) if rank else zeros_without_memory(5)[1:]
    gathered, rows, part = torch.full((2, 4), 7.0), torch.full((8,), 7.0), torch.full((2,), 7.0)
    distributed.all_gather(list(gathered), value)
    distributed.all_gather_into_tensor(rows, value)
    distributed.reduce_scatter_tensor(part, value)
    exchanged, scattered = torch.full((4,), 7.0), torch.full((4,), 7.0)
    distributed.all_to_all_single(exchanged, value)
    distributed.scatter(scattered, None if rank else [value] * size, 0)
    received = torch.full((4,), 7.0)
    if rank == 0:
        distributed.send(value, 1)
    else:
        distributed.recv(received, 0)
    return [one.tolist() for one in (gathered, rows, part, exchanged, scattered, received)]
