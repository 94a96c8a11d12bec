"""What a step under DistributedDataParallel takes on treefold's process groups, beside gloo in the same processes.

``python benchmarks/ddp.py [--ranks 2 4] [--rounds 40]`` prints the table of docs/torch_backend.md. A network of 4.7
million parameters makes steps with each backend in turn: forward, backward with DDP's reduction, and the optimizer's
step, one thread a rank. CPU time is summed over ranks; wall time is the slowest rank's. A ratio is taken within a
round; medians are shown. In the end the parameters that each backend has trained are compared with gloo's.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import distributed, multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel

import treefold.torch
from treefold.report.tables import markdown_table

_WIDTHS = (768, 1536, 1536, 768)  # 4.7 million parameters, in three layers
_BATCH = 8
_WARM_UP = 3  # rounds that do not count
_HOOKS = {
    "gloo": ("gloo", None),
    "treefold": ("treefold", None),
    "treefold, `mean_hook`": ("treefold", treefold.torch.mean_hook),
    "treefold, `shared_mean_hook`": ("treefold", treefold.torch.shared_mean_hook),
}

HEADER = ["backend", "ranks", "CPU ms", "of gloo's", "wall ms", "of gloo's", "parameters from gloo's"]


class Trainee:
    """A network under DDP on one backend."""

    def __init__(self, backend: str, hook: Callable[..., Any] | None) -> None:
        """Make the same network on every rank and for every backend."""
        torch.manual_seed(1)
        layers = [layer for pair in itertools.pairwise(_WIDTHS) for layer in (nn.Linear(*pair), nn.ReLU())]
        self.network = nn.Sequential(*layers[:-1])
        group = distributed.new_group(backend=backend)
        self.model = DistributedDataParallel(self.network, process_group=group)
        if hook is not None:
            self.model.register_comm_hook(group, hook)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)

    def step(self, inputs: torch.Tensor, targets: torch.Tensor) -> tuple[float, float]:
        """Return the CPU and wall seconds of a step."""
        wall, cpu = time.perf_counter(), time.process_time()
        self.optimizer.zero_grad()
        nn.functional.mse_loss(self.model(inputs), targets).backward()
        self.optimizer.step()
        return time.process_time() - cpu, time.perf_counter() - wall


def be_rank(rank: int, ranks: int, rounds: int, folder: str) -> None:
    """Train on every backend in turn; rank 0 writes every round's seconds, and how far apart the parameters end."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    trainees = {name: Trainee(*how) for name, how in _HOOKS.items()}
    draw = torch.Generator().manual_seed(rank)
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in trainees}
    for turn in range(_WARM_UP + rounds):
        inputs, targets = (torch.randn(_BATCH, width, generator=draw) for width in (_WIDTHS[0], _WIDTHS[-1]))
        for name in list(trainees)[:: 1 if turn % 2 else -1]:
            distributed.barrier()
            own = torch.tensor(trainees[name].step(inputs, targets))
            all_ranks = [torch.empty(2) for _ in range(ranks)]
            distributed.all_gather(all_ranks, own)
            cpu, wall = torch.stack(all_ranks).unbind(1)
            if turn >= _WARM_UP:
                seconds[name].append((float(cpu.sum()), float(wall.max())))
    if rank == 0:
        right = [parameter.detach() for parameter in trainees["gloo"].network.parameters()]
        apart = {
            name: max(float((a - b.detach()).abs().max()) for a, b in zip(right, one.network.parameters(), strict=True))
            for name, one in trainees.items()
        }
        torch.save((seconds, apart), f"{folder}/seconds")
    distributed.barrier()
    distributed.destroy_process_group()


def measure(ranks: int, rounds: int) -> list[list[str]]:
    """Return a row for each backend: CPU and wall time beside gloo's, and how far its parameters are from gloo's."""
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(be_rank, (ranks, rounds, folder), nprocs=ranks)
        seconds, apart = torch.load(Path(folder, "seconds"))
    rows = []
    for name, pairs in seconds.items():
        cells = []
        for which in (0, 1):
            median = statistics.median(pair[which] for pair in pairs)
            both = zip(pairs, seconds["gloo"], strict=True)
            ratio = statistics.median(pair[which] / of_gloo[which] for pair, of_gloo in both)
            cells += [f"{1e3 * median:.1f}", f"{ratio:.2f}"]
        rows.append([name, str(ranks), *cells, f"{apart[name]:.1g}"])
    return rows


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rounds", type=int, default=40)
    arguments = parser.parse_args()
    print(markdown_table(HEADER, [row for ranks in arguments.ranks for row in measure(ranks, arguments.rounds)]))


if __name__ == "__main__":
    main()
