"""Gradients clipped as one rank does it: parts of a model, DTensors, and what is refused."""

import numpy as np
import torch
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

import treefold
from torch_ranks import training
from treefold import exact
from treefold.torch import clip_grad_norm_


def gradients(dtype=torch.float32):
    """Return those of a whole model, the same on all ranks, of sizes that make any sum round."""
    generator = torch.Generator().manual_seed(5)
    sizes = ((40, 7), (1000,), (3, 3, 3), (1,))
    return [
        torch.randn(size, generator=generator, dtype=torch.float64).to(dtype) * 10.0**at
        for at, size in enumerate(sizes)
    ]


def parameter_of(gradient):
    parameter = nn.Parameter(torch.zeros_like(gradient))
    parameter.grad = gradient
    return parameter


def bits(tensor):
    return tensor.detach().numpy().tobytes()


def alone():
    """Return the norm and the clipped gradients of one process."""
    parameters = [parameter_of(one) for one in gradients()]
    norm = clip_grad_norm_(parameters, 1.0)
    return bits(norm), [bits(one.grad) for one in parameters]


def parts(rank, size, kind):
    """Each rank has some of the parameters, one of them none; return whether all is as in one process."""
    parameters = [parameter_of(one) for at, one in enumerate(gradients()) if at % (size - 1 or 1) == rank]
    group = distributed.group.WORLD if kind == "process group" else treefold.connect(distributed.group.WORLD)
    found = [bits(clip_grad_norm_(parameters, 1.0, group=group))]
    norm, clipped = alone()
    mine = [one for at, one in enumerate(clipped) if at % (size - 1 or 1) == rank]
    return found == [norm] and [bits(one.grad) for one in parameters] == mine


def sharded(rank, size):
    """The same of DTensors: cut along either axis of a mesh, along both, or along none."""
    mesh = distributed.init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("outer", "inner"))
    placements = [
        (Shard(0), Shard(1)),
        (Replicate(), Shard(0)),
        (Shard(0), Replicate()),
        (Replicate(), Replicate()),
    ]
    parameters = [
        parameter_of(distribute_tensor(one, mesh, placement))
        for one, placement in zip(gradients(), placements, strict=True)
    ]
    found = bits(clip_grad_norm_(parameters, 1.0))
    norm, clipped = alone()
    return found == norm, [bits(one.grad.full_tensor()) for one in parameters] == clipped


def fsdp(rank, size):
    """Return the norm of a sharded model's gradients, and that of the same gradients as one process has them."""
    model = training.model_of()
    mesh = distributed.init_device_mesh("cpu", (size,))
    for layer in (model.first, model.odd, model.last):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    training.loss_of(model, rank, 0).backward()
    whole = [one.grad.full_tensor().numpy().copy() for one in model.parameters()]
    found = bits(clip_grad_norm_(model.parameters(), 0.1))
    after = exact.norm([one.grad.full_tensor().numpy() for one in model.parameters()])
    return found == np.asarray(exact.norm(whole)).tobytes(), abs(float(after) - 0.1) < 1e-6


def refused(rank, size):
    """One rank brings what has no norm; then all bring what has one."""
    own = parameter_of(torch.ones(2).to_sparse() if rank else torch.ones(2))
    found = []
    for given in (own, parameter_of(torch.ones(2))):
        try:
            found.append(float(clip_grad_norm_(given, 100.0, group=distributed.group.WORLD)))
        except treefold.errors.TreefoldError as error:
            found.append((type(error).__name__, str(error)))
    return found


def partial(rank, size):
    mesh = distributed.init_device_mesh("cpu", (size,))
    return clip_grad_norm_(parameter_of(DTensor.from_local(torch.ones(2), mesh, [Partial()])), 1.0)
