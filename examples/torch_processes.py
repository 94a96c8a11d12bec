"""Train one model in two processes with PyTorch's DistributedDataParallel, which meet in shared memory.

Run it: python examples/torch_processes.py
It starts itself under torchrun; in a job of your own that is `torchrun --nproc-per-node 2 train.py`.
"""

import os
import sys

import torch
from torch import distributed
from torch.distributed.run import main as torchrun
from torch.nn.parallel import DistributedDataParallel

from treefold.torch import mean_hook  # the import also registers the backend "treefold"

RANKS, STEPS = 2, 30


def train() -> None:
    """Run one rank."""
    distributed.init_process_group("treefold")
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    torch.manual_seed(0)
    inputs = torch.randn(256, 8)
    targets = inputs[:, :1] * inputs[:, 1:2]
    x, y = inputs.chunk(ranks)[rank], targets.chunk(ranks)[rank]
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    )
    model.register_comm_hook(None, mean_hook)  # the mean of the gradients, rounded once
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        distributed.all_reduce(mean, op=distributed.ReduceOp.AVG)
        if rank == 0 and (step % 10 == 0 or step == STEPS - 1):
            print(f"step {step:2d}: mean loss of {ranks} ranks {mean.item():.4f}")

    state = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    states = [torch.empty_like(state) for _ in range(ranks)]
    distributed.all_gather(states, state)
    if rank == 0:
        print("all ranks hold the same bits:", all(torch.equal(other, state) for other in states))
    distributed.destroy_process_group()


if __name__ == "__main__":
    if "RANK" in os.environ:
        train()
    else:
        os.environ["OMP_NUM_THREADS"] = "1"
        torchrun(["--standalone", f"--nproc-per-node={RANKS}", *sys.argv])
