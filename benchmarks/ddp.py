"""Times a step under DistributedDataParallel on treefold's process groups, beside gloo in the same processes.

Running ``python benchmarks/ddp.py [--ranks 2 4] [--rounds 40]`` prints the table of docs/torch_backend.md. A network of
4.7 million parameters makes steps with each backend in turn: forward, backward with DDP's reduction, and the
optimizer's step, one thread a rank. CPU time is summed over ranks; wall time is the slowest rank's. Ratios are formed
within a round; medians are shown. At the end, each backend's trained parameters are compared with gloo's.

With ``--works fsdp``, ``fully_shard`` shards the network in place of DDP. With ``--works messages``, ranks send 4 KiB
and 64 MiB to each other and back. With ``--mbit 200 1000``, DDP makes its steps on two emulated hosts with two ranks
each, or as many as ``--each`` says, behind cables of this many Mbit/s. The latter needs root.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import distributed, multiprocessing, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import treefold.torch
from treefold.cli.tables import markdown_table

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
        self.network = _network()
        group = distributed.new_group(backend=backend)
        self.model = self.distribute(group, hook)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)

    def distribute(self, group: Any, hook: Callable[..., Any] | None) -> nn.Module:
        """Return the network as it will be trained."""
        model = DistributedDataParallel(self.network, process_group=group)
        if hook is not None:
            model.register_comm_hook(group, hook)
        return model

    def step(self, inputs: torch.Tensor, targets: torch.Tensor) -> tuple[float, float]:
        """Return the CPU and wall seconds of a step."""
        wall, cpu = time.perf_counter(), time.process_time()
        self.optimizer.zero_grad()
        nn.functional.mse_loss(self.model(inputs), targets).backward()
        self.optimizer.step()
        return time.process_time() - cpu, time.perf_counter() - wall

    def parameters(self) -> list[torch.Tensor]:
        """Return the trained parameters; of shards, those of this rank."""
        return [getattr(one, "_local_tensor", one).detach() for one in self.network.parameters()]


class Sharded(Trainee):
    """A network with sharded parameters."""

    def distribute(self, group: Any, hook: Callable[..., Any] | None) -> nn.Module:
        """Return the network as it will be trained."""
        del hook
        mesh = DeviceMesh.from_group(group, "cpu")
        for layer in self.network:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=mesh)
        return fully_shard(self.network, mesh=mesh)


class Sender:
    """Messages of one size from each even rank to the next, and back; a step is ``count`` of them."""

    def __init__(self, backend: str, nbytes: int, count: int) -> None:
        """Connect, and check the first message."""
        self.group = distributed.new_group(backend=backend)
        self.rank, self.count = distributed.get_rank(), count
        self.sent, self.taken = (
            torch.full((nbytes,), self.rank, dtype=torch.uint8),
            torch.zeros(nbytes, dtype=torch.uint8),
        )
        self.step(self.sent, self.sent)
        if self.taken.unique().tolist() != [self.rank ^ 1]:
            raise AssertionError(self.taken)

    def step(self, *_: torch.Tensor) -> tuple[float, float]:
        """Return the CPU and wall seconds of a step."""
        wall, cpu = time.perf_counter(), time.process_time()
        calls = [(distributed.send, self.sent), (distributed.recv, self.taken)][:: -1 if self.rank % 2 else 1]
        for _ in range(self.count):
            for call, tensor in calls:
                call(tensor, self.rank ^ 1, group=self.group)
        return time.process_time() - cpu, time.perf_counter() - wall

    def parameters(self) -> list[torch.Tensor]:
        """Return nothing, because nothing is trained."""
        return []


def _network() -> nn.Sequential:
    torch.manual_seed(1)
    layers = [layer for pair in itertools.pairwise(_WIDTHS) for layer in (nn.Linear(*pair), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def _works(work: str) -> dict[str, Any]:
    """Return the steps to measure by name, gloo's first, with which the others are compared."""
    if work == "ddp":
        return {name: Trainee(*how) for name, how in _HOOKS.items()}
    if work == "fsdp":
        return {name: Sharded(name, None) for name in ("gloo", "treefold")}
    nbytes, count = {"messages of 4 KiB": (1 << 12, 100), "messages of 64 MiB": (1 << 26, 1)}[work]
    return {name: Sender(name, nbytes, count) for name in ("gloo", "treefold")}


def be_rank(rank: int, ranks: int, rounds: int, folder: str, work: str) -> None:
    """Make steps on every backend in turn. Rank 0 writes the seconds, and the final distance of parameters."""
    torch.set_num_threads(1)
    method = "env://" if "MASTER_ADDR" in os.environ else f"file://{folder}/store"
    distributed.init_process_group("gloo", init_method=method, rank=rank, world_size=ranks)
    trainees = _works(work)
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
        right = trainees["gloo"].parameters()
        apart = {
            name: max((float((a - b).abs().max()) for a, b in zip(right, one.parameters(), strict=True)), default=0.0)
            for name, one in trainees.items()
        }
        torch.save((seconds, apart), f"{folder}/seconds")
    distributed.barrier()
    distributed.destroy_process_group()


def measure(ranks: int, rounds: int, work: str = "ddp") -> list[list[str]]:
    """Return a row per backend: CPU and wall time beside gloo's, and the distance of its parameters from gloo's."""
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(be_rank, (ranks, rounds, folder, work), nprocs=ranks)
        return _rows(folder, f"{ranks}")


def measure_on_hosts(mbit: int, each: int, rounds: int) -> list[list[str]]:
    """Return the rows of DDP on two emulated hosts, each with ``each`` ranks, behind cables of ``mbit`` Mbit/s."""
    sys.path.append(str(Path(__file__).parents[1] / "tools"))
    from lab import Lab, launch, star  # noqa: PLC0415 - tools, for this alone

    placement = launch.blocks(2, each)
    with Lab(star(mbit, mbit)) as lab, tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--be-rank", folder, "--rounds", str(rounds)]
        with launch.start(lab, command, placement) as job:
            if any(job.wait()):
                raise SystemExit(1)
        return _rows(folder, f"2 hosts × {each}, {mbit} Mbit/s")


def _rows(folder: str, where: str) -> list[list[str]]:
    seconds, apart = torch.load(Path(folder, "seconds"))
    rows = []
    for name, pairs in seconds.items():
        cells = []
        for which in (0, 1):
            median = statistics.median(pair[which] for pair in pairs)
            both = zip(pairs, seconds["gloo"], strict=True)
            ratio = statistics.median(pair[which] / of_gloo[which] for pair, of_gloo in both)
            cells += [f"{1e3 * median:.1f}", f"{ratio:.2f}"]
        rows.append([name, where, *cells, f"{apart[name]:.1g}"])
    return rows


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--works", nargs="+", choices=["ddp", "fsdp", "messages"], default=["ddp"])
    parser.add_argument("--mbit", type=int, nargs="+", default=[])
    parser.add_argument("--each", type=int, default=2, help="ranks on each emulated host")
    parser.add_argument("--be-rank", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.be_rank:
        be_rank(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), asked.rounds, asked.be_rank, "ddp")
        return
    for mbit in asked.mbit:
        print(markdown_table(HEADER, measure_on_hosts(mbit, asked.each, asked.rounds)), flush=True)
    sizes = ["messages of 4 KiB", "messages of 64 MiB"]
    for work in (
        [] if asked.mbit else [one for name in asked.works for one in (sizes if name == "messages" else [name])]
    ):
        print(
            f"{work}:",
            markdown_table(HEADER, [r for n in asked.ranks for r in measure(n, asked.rounds, work)]),
            sep="\n\n",
        )


if __name__ == "__main__":
    main()
