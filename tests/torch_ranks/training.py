"""Training as one rank runs it: DDP, FSDP2. Every rank has data of its own, so a lost gradient shows."""

import contextlib
import copy

import torch
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import treefold.torch

_STEPS = 3


class Branches(nn.Module):
    """A model of several layers, one of which only every second batch uses."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 64), nn.Linear(64, 4)
        self.odd = nn.Linear(64, 64)

    def forward(self, batch, *, is_odd=True):
        hidden = torch.relu(self.first(batch))
        return self.last(torch.relu(self.odd(hidden)) if is_odd else hidden)


def model_of(seed=0):
    torch.manual_seed(seed)
    return Branches()


def batch_of(rank, step):
    """Return the batch of a rank; step by step another."""
    generator = torch.Generator().manual_seed(100 * rank + step)
    return torch.randn(5, 8, generator=generator)


def loss_of(model, rank, step, **options):
    return model(batch_of(rank, step), **options).square().mean()


def bits_of(model):
    return [parameter.detach().view(torch.int32).flatten().tolist() for parameter in model.parameters()]


def train(rank, size, options, hook, state=None, *, is_compiled=False):
    """Train a model under DDP, of other parameters on each rank to begin with; return what it has learnt.

    ``hook``: the name of one in ``treefold.torch``, or empty; ``state``: what it gets.
    """
    ddp = DistributedDataParallel(model_of(seed=rank), **{"bucket_cap_mb": 0.01, **options})
    if hook:
        ddp.register_comm_hook(state, getattr(treefold.torch, hook))
    called = torch.compile(ddp, backend="eager") if is_compiled else ddp
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    for step in range(_STEPS):
        optimizer.zero_grad()
        is_odd = not options.get("find_unused_parameters") or step % 2 == 1
        loss_of(called, rank, step, is_odd=is_odd).backward()
        optimizer.step()
    return bits_of(ddp.module)


def train_alone(size, *, is_odd=lambda step: True):  # noqa: ARG005 - a constant
    """Return what a single process learns from the mean of all ranks' gradients, each rounded once."""
    with one_thread():
        return _train_alone(size, is_odd)


@contextlib.contextmanager
def one_thread():
    """Let PyTorch use one thread, as ranks do: on some processors its products differ by their number."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _train_alone(size, is_odd):
    model = model_of(seed=0)
    for step in range(_STEPS):
        copies = [copy.deepcopy(model) for _ in range(size)]
        for rank, one in enumerate(copies):
            loss_of(one, rank, step, is_odd=is_odd(step)).backward()
        columns = zip(*(one.parameters() for one in copies), strict=True)
        with torch.no_grad():
            for parameter, column in zip(model.parameters(), columns, strict=True):
                gradients = [other.grad if other.grad is not None else torch.zeros_like(other) for other in column]
                mean = torch.stack(gradients).double().sum(0).div(size).float()
                parameter.sub_(mean, alpha=0.1)
    return bits_of(model)


def buckets(rank, size):
    """Count the all-reduces of a step, which come from autograd's thread."""
    ddp = DistributedDataParallel(model_of(), bucket_cap_mb=0.01)
    group, calls = distributed.group.WORLD, []
    reduce_all = group._reduce

    def counted(tensors, opts, root):
        calls.append(len(tensors))
        return reduce_all(tensors, opts, root)

    group._reduce = counted
    for step in range(2):
        calls.clear()
        loss_of(ddp, rank, step).backward()
    return len(calls)


def no_sync(rank, size):
    """Two batches are accumulated before the ranks meet; return the gradient, and what it is to be."""
    ddp = DistributedDataParallel(model_of())
    for step in range(2):
        with ddp.no_sync() if step == 0 else contextlib.nullcontext():
            loss_of(ddp, rank, step).backward()
    everyone = [model_of() for _ in range(size)]
    for other, model in enumerate(everyone):
        for step in range(2):
            loss_of(model, other, step).backward()
    expected = torch.stack([model.first.weight.grad for model in everyone]).mean(0)
    torch.testing.assert_close(ddp.module.first.weight.grad, expected)
    return ddp.module.first.weight.grad.tolist()


def refused_hook(rank, size):
    ddp = DistributedDataParallel(nn.Linear(4, 4))
    ddp.register_comm_hook(None, treefold.torch.shared_mean_hook)
    ddp(torch.ones(1, 4)).sum().backward()


def small_gradients(rank, size):
    """A gradient of half precision so small that a division before the sum would make it zero."""
    model = nn.Linear(1, 1, bias=False).half()
    ddp = DistributedDataParallel(model)
    ddp.register_comm_hook(None, treefold.torch.mean_hook)
    smallest = 2.0**-24
    ddp(torch.full((1, 1), smallest, dtype=torch.float16)).sum().backward()
    return model.weight.grad.item() / smallest


def shard(rank, size):
    """Train a model that FSDP2 has sharded over the ranks; return what it has learnt."""
    model = model_of()
    for layer in (model.first, model.odd, model.last):
        fully_shard(layer, mesh=distributed.init_device_mesh("cpu", (size,)))
        layer.set_allocate_memory_from_process_group_for_comm(True)
    fully_shard(model, mesh=distributed.init_device_mesh("cpu", (size,)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(_STEPS):
        optimizer.zero_grad()
        loss_of(model, rank, step).backward()
        optimizer.step()
    return bits_of_sharded(model)


def bits_of_sharded(model):
    return [parameter.full_tensor().detach().view(torch.int32).flatten().tolist() for parameter in model.parameters()]
