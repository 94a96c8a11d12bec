"""Trains on many numbers and layouts of ranks, and prints their SHAs, and what a step costs.

The first table has one row per layout: the SHA of parameters and optimizer by ``treefold.torch.MicroBatches``, which
are all one, and by the usual loop over gloo, which differ. The second compares the time of a step, in turns, with the
same loop that accumulates by ``.grad +=`` and reduces exactly once a step (plain, DDP), or reduces in every pass by
FSDP2's own reduce-scatter over gloo. Run it with ``python benchmarks/one_sha.py``; ``--steps 20``, ``--large`` and
``--times`` choose.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import itertools
import json
import multiprocessing
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import treefold.torch
from treefold.cli.tables import plain_table

_PER_STEP = 24
_SMALL = [("plain", n) for n in (1, 2, 3, 5, 8)] + [("ddp", n) for n in (2, 3, 5, 8)]
_SMALL += [("fsdp", n) for n in (1, 2, 3, 5)] + [("hsdp", n) for n in (4, 6, 10)]
_LARGE = [("plain", 1), ("fsdp", 3), ("hsdp", 4)]


class Encoder(nn.Module):
    """A transformer with dropout and tied weights; ``width=96, layers=4``: half a million parameters."""

    def __init__(self, width: int = 96, layers: int = 4) -> None:
        """Make its layers."""
        super().__init__()
        self.words = nn.Embedding(400, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.1, batch_first=True) for _ in range(layers)
        )
        self.last = nn.Linear(width, 400)
        nn.init.normal_(self.words.weight, std=0.02)
        self.last.weight = self.words.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Return scores of the next words."""
        hidden = self.words(words)
        for layer in self.layers:
            hidden = layer(hidden)
        scores: torch.Tensor = self.last(hidden)
        return scores

    def loss(self, model: nn.Module, examples: int = 2) -> torch.Tensor:
        """Return the loss of random text."""
        words = torch.randint(400, (examples, 17))
        return nn.functional.cross_entropy(model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())


class Convolutions(nn.Module):
    """A convolutional network with dropout and half a million parameters."""

    def __init__(self) -> None:
        """Make its layers."""
        super().__init__()
        sizes = (3, 48, 96, 192)
        blocks = [
            nn.Sequential(nn.Conv2d(a, b, 3, 2, 1), nn.GroupNorm(8, b), nn.ReLU(), nn.Dropout2d(0.1))
            for a, b in itertools.pairwise(sizes)
        ]
        self.layers = nn.ModuleList([*blocks, nn.Sequential(nn.Conv2d(192, 160, 3, 1, 1), nn.ReLU())])
        self.last = nn.Linear(160 * 4, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return scores of classes."""
        for layer in self.layers:
            images = layer(images)
        scores: torch.Tensor = self.last(images.flatten(1))
        return scores

    def loss(self, model: nn.Module, examples: int = 2) -> torch.Tensor:
        """Return the loss of random images."""
        return nn.functional.cross_entropy(model(torch.randn(examples, 3, 16, 16)), torch.randint(10, (examples,)))


def made(network: str, layout: str, optimizer: str) -> tuple[Any, nn.Module, torch.optim.Optimizer]:
    """Return a network, the model that it is cut or wrapped into, and its optimizer."""
    torch.manual_seed(1)
    whole: Any = {"transformer": Encoder, "convolutions": Convolutions}.get(network, lambda: Encoder(256, 6))()
    model: nn.Module = whole
    size = distributed.get_world_size()
    if layout == "ddp":
        model = DistributedDataParallel(whole)
    elif layout in {"fsdp", "hsdp"}:
        shape = (size,) if layout == "fsdp" else (2, size // 2)
        mesh = distributed.init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")[-len(shape) :])
        for layer in whole.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(whole, mesh=mesh)
    if optimizer == "adamw":
        return whole, model, torch.optim.AdamW(model.parameters(), lr=1e-3)
    return whole, model, torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)


def micro_batches(
    whole: Any,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    autocast: bool = False,
    per_step: int = _PER_STEP,
    examples: int = 2,
) -> Iterator[Any]:
    """Train by ``MicroBatches``; yield the run after every step."""
    run = treefold.torch.MicroBatches(model, distributed.group.WORLD, per_step=per_step)
    step = 0
    while True:
        for index in run.mine(step):
            with run.micro_batch(step, index):
                with torch.autocast("cpu", torch.bfloat16) if autocast else contextlib.nullcontext():
                    loss = whole.loss(model, examples)
                loss.backward()
                run.log(loss=loss)
        run.reduce(max_norm=1.0)
        optimizer.step()
        step += 1
        yield run


def usual(
    whole: Any,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    is_exact: bool,
    per_step: int = _PER_STEP,
    examples: int = 2,
) -> Iterator[None]:
    """Train by ``.grad +=``; yield after every step. ``is_exact``: treefold's sum over ranks in place of gloo's."""
    size, rank, step = distributed.get_world_size(), distributed.get_rank(), 0
    passes = -(-per_step // size)
    is_cut = any(hasattr(one, "device_mesh") for one in model.parameters())
    group = treefold.connect(distributed.group.WORLD) if is_exact else None
    while True:
        optimizer.zero_grad()
        for turn in range(passes):
            torch.manual_seed(1000 * step + rank + turn * size)
            has_sync = isinstance(model, DistributedDataParallel) and (is_exact or turn < passes - 1)
            with model.no_sync() if has_sync else contextlib.nullcontext():  # type: ignore[operator]
                (whole.loss(model, examples) / passes).backward()
        gradients = [one.grad for one in model.parameters() if one.grad is not None]
        if group is not None:
            group.all_reduce(gradients, "mean", out=gradients)
        elif not is_cut and not isinstance(model, DistributedDataParallel):
            for one in gradients:
                distributed.all_reduce(one.div_(size))
        if is_exact:
            treefold.torch.clip_grad_norm_(model.parameters(), 1.0)
        else:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
        yield None


def shas(network: str, layout: str, optimizer: str, steps: int, autocast: bool) -> dict[str, Any]:  # noqa: FBT001
    """Return the SHAs of both trainings on this process's ranks."""
    whole, model, made_optimizer = made(network, layout, optimizer)
    training = micro_batches(whole, model, made_optimizer, autocast=autocast)
    for _ in range(steps):
        run = next(training)
    ours, loss = run.sha256(made_optimizer), run.logged["loss"]
    if autocast or network == "large":
        return {"ours": ours, "loss": loss, "theirs": ""}
    whole, model, made_optimizer = made(network, layout, optimizer)
    training = usual(whole, model, made_optimizer, is_exact=False)
    for _ in range(steps):
        next(training)
    digests = treefold.torch.MicroBatches(model, distributed.group.WORLD, per_step=1)
    return {"ours": ours, "loss": loss, "theirs": digests.sha256(made_optimizer)}


def times(network: str, layout: str, turns: int, examples: int) -> dict[str, Any]:
    """Return the seconds of a step of both, in turns."""
    trainings = [
        micro_batches(*made(network, layout, "adamw"), per_step=4 * distributed.get_world_size(), examples=examples),
        usual(
            *made(network, layout, "adamw"),
            is_exact=layout != "fsdp",
            per_step=4 * distributed.get_world_size(),
            examples=examples,
        ),
    ]
    ratios, took = [], []
    for turn in range(turns + 2):
        pair = []
        for training in trainings:
            distributed.barrier()
            begin = time.perf_counter()
            next(training)
            pair.append(time.perf_counter() - begin)
        if turn >= 2:  # noqa: PLR2004 - the first steps allocate
            ratios.append(pair[0] / pair[1])
            took.append(pair)
    ours, theirs = (statistics.median(each) for each in zip(*took, strict=True))
    return {"ours": ours, "theirs": theirs, "ratio": statistics.median(ratios)}


def memory(network: str, layout: str, weight: int) -> dict[str, Any]:
    """Return the bytes of partial sums, in trees of float32 gradients of this rank's part."""
    whole, model, _ = made(network, layout, "adamw")
    run = treefold.torch.MicroBatches(model, distributed.group.WORLD, per_step=_PER_STEP)
    for index in run.mine(0):
        with run.micro_batch(0, index, weight=weight + index):
            whole.loss(model).backward()
    held = run.nbytes
    tree = sum(4 * (one.to_local() if hasattr(one, "to_local") else one).numel() for one in model.parameters())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run.reduce()
    return {"held": held / tree, "reduce": 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / tree}


def ranks(size: int, body: str, *arguments: Any) -> Any:
    """Run a function of this module on some ranks of this host, and return what rank 0 returns."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        children = [context.Process(target=_rank, args=(rank, size, folder, body, arguments)) for rank in range(size)]
        for child in children:
            child.start()
        for child in children:
            child.join()
        return json.loads(Path(folder, "answer").read_text(encoding="utf-8"))


def _rank(rank: int, size: int, folder: str, body: str, arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size, timeout=dt.timedelta(seconds=600)
    )
    answer = globals()[body](*arguments)
    if rank == 0:
        Path(folder, "answer").write_text(json.dumps(answer), encoding="utf-8")
    distributed.barrier()
    os._exit(0)


def sha_table(layouts: list[tuple[str, int]], network: str, optimizer: str, steps: int, autocast: bool) -> None:  # noqa: FBT001
    """Print a row per layout, and whether treefold's SHAs are one."""
    rows, found = [], set()
    for layout, size in layouts:
        answer = ranks(size, "shas", network, layout, optimizer, steps, autocast)
        found.add((answer["ours"], answer["loss"]))
        rows.append([layout, str(size), answer["ours"][:12], answer["theirs"][:12]])
    kind = ", bfloat16 by autocast" if autocast else ""
    print(f"\n{network}, {optimizer}, {steps} steps of {_PER_STEP} micro-batches{kind}: {len(found)} SHA of treefold's")
    print(plain_table(["layout", "ranks", "treefold", "usual loop, gloo"], rows), flush=True)


def main() -> None:
    """Print what the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--large", action="store_true", help="5 million parameters, 100 steps")
    parser.add_argument("--times", action="store_true", help="times and memory only")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--examples", type=int, default=16, help="of a micro-batch whose time is taken (16)")
    options = parser.parse_args()
    if options.large:
        sha_table(_LARGE, "large", "adamw", 100, False)  # noqa: FBT003
        return
    for network in () if options.times else ("transformer", "convolutions"):
        for optimizer in ("adamw", "momentum"):
            sha_table(_SMALL, network, optimizer, options.steps, False)  # noqa: FBT003
        sha_table([("plain", 1), ("ddp", 3), ("fsdp", 2), ("hsdp", 4)], network, "adamw", options.steps, True)  # noqa: FBT003
    rows = []
    for network in ("transformer", "convolutions"):
        for layout in ("plain", "ddp", "fsdp"):
            took = ranks(4, "times", network, layout, options.turns, options.examples)
            plain, weighted = (ranks(4, "memory", network, layout, weight) for weight in (1, 1 << 30))
            row = [f"{1e3 * took['ours']:.0f}", f"{1e3 * took['theirs']:.0f}", f"{took['ratio']:.2f}"]
            kept = [f"{each['held']:.2f}, {each['reduce']:.2f}" for each in (plain, weighted)]
            rows.append([network, layout, *row, *kept])
    heads = ["network", "4 ranks", "step ms", "usual ms", "ratio", "trees held, reduce", "weights of 31 bits"]
    print(f"\n{plain_table(heads, rows)}")


if __name__ == "__main__":
    main()
