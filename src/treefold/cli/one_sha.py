"""One training on any number of ranks, as ``treefold demo --ranks`` runs it: exactly, and as most programs do.

Every rank is a process of this host. Each trains a small network on real digits twice, from the same parameters, on the
same micro-batches with the same dropout. The first training uses ``MicroBatches``. In the second, gradients accumulate
in ``.grad``, DistributedDataParallel sums them over ranks on gloo, and PyTorch clips them. Only the rounding of sums
differs.
"""

from __future__ import annotations

import json
import multiprocessing
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from treefold.cli.training import Examples
from treefold.files import write_atomically
from treefold.torch import MicroBatches
from treefold.torch.training.generators import seeded

PER_STEP, EXAMPLES = 24, 8  # micro-batches in a step, examples in a micro-batch
_MAX_NORM = 1.0
#: Returns the loss of a micro-batch, given its step and index.
Compute = Callable[[int, int], torch.Tensor]


class Trained(NamedTuple):
    """The mean loss of each step, and the SHA-256 of the parameters and the optimizer's state in the end."""

    losses: list[float]
    sha256: str


def train_on(ranks: int, train: Examples, steps: int, seed: int) -> tuple[list[Trained], list[Trained]]:
    """Train on ``ranks`` processes; return the result of each one with treefold, and of each one as usual."""
    # Ranks are forked from a process that has imported what takes seconds, and has done nothing else.
    multiprocessing.set_forkserver_preload([__name__, "torch._dynamo"])
    with tempfile.TemporaryDirectory() as folder:
        given = (ranks, folder, train, steps, seed)
        torch.multiprocessing.start_processes(_train_rank, given, nprocs=ranks, start_method="forkserver")
        found = [json.loads(Path(folder, f"{rank}.json").read_text(encoding="utf-8")) for rank in range(ranks)]
    exact, usual = ([Trained(*one) for one in each] for each in zip(*found, strict=True))
    return exact, usual


def _train_rank(rank: int, ranks: int, folder: str, train: Examples, steps: int, seed: int) -> None:
    torch.set_num_threads(1)  # on every number of ranks, because a product's bits may depend on it
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=ranks)
    found = [_train(train_step, train, steps, seed) for train_step in (step_exactly, step_as_usual)]
    write_atomically(Path(folder, f"{rank}.json"), json.dumps(found))
    distributed.destroy_process_group()


def _train(train_step: Callable[..., float], train: Examples, steps: int, seed: int) -> Trained:
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 10))
    model = DistributedDataParallel(network)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    run = MicroBatches(model, distributed.group.WORLD, per_step=PER_STEP, seed=seed)

    def compute(step: int, index: int) -> torch.Tensor:
        chosen = np.random.default_rng([seed, step, index]).integers(len(train), size=EXAMPLES)
        batch = train.pick(chosen)
        return nn.functional.cross_entropy(model(torch.from_numpy(batch.images)), torch.from_numpy(batch.labels))

    losses = [train_step(run, model, optimizer, compute, step) for step in range(steps)]
    return Trained(losses, run.sha256(optimizer))


def step_exactly(
    run: MicroBatches, _: DistributedDataParallel, optimizer: torch.optim.Optimizer, compute: Compute, step: int
) -> float:
    """Make one step with treefold, and return its mean loss; its bits do not depend on the number of ranks."""
    for index in run.mine(step):
        with run.micro_batch(step, index):
            loss = compute(step, index)
            loss.backward()
            run.log(loss=loss)
    run.reduce(max_norm=_MAX_NORM)
    optimizer.step()
    return run.logged["loss"]


def step_as_usual(
    run: MicroBatches, model: DistributedDataParallel, optimizer: torch.optim.Optimizer, compute: Compute, step: int
) -> float:
    """Make one step as most programs do, and return its mean loss; every sum is rounded, in the order of the ranks."""
    mine, total = range(run.rank, PER_STEP, run.ranks), torch.zeros(())
    optimizer.zero_grad()
    for index in mine:
        is_last = index == mine[-1]
        with nullcontext() if is_last else model.no_sync(), seeded(run.seed, step, index):
            loss = compute(step, index) / PER_STEP
            (loss * run.ranks).backward()  # DistributedDataParallel divides by the number of ranks
        total += loss.detach()
    distributed.all_reduce(total)
    nn.utils.clip_grad_norm_(model.parameters(), _MAX_NORM)
    optimizer.step()
    return float(total)
