"""The demo's training with one process per device: what every rank runs, and what rank 0 checks of it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from treefold import HierarchicalCopyAllReduce, PerReplica, all_reduce
from treefold.cli.demo.data import CLASSES, Digits, draw_batches
from treefold.cli.demo.network import Parameters, copy_parameters, differentiate, digest, draw_parameters, zeros_like
from treefold.cli.demo.train import BATCH_SIZE, OPTIMIZER, PARTS, SIZES, deal, differentiate_parts, digits_of, train_all
from treefold.errors import CommandError
from treefold.errors.words import counted
from treefold.group import Group, connect


def train_connected(digits: Digits, *, steps: int, seed: int, shuffle: bool) -> bool:
    """Train as one of the processes that a launcher has started; rank 0 compares with as many devices of one process.

    Raises:
        CommandError: there are too few processes, or too many.

    """
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # noqa: PLC0415 - of the extra

    with connect() as group, threadpool_limits(1, user_api="blas"):
        if not 2 <= group.size <= CLASSES:  # noqa: PLR2004 - one process has nothing to reduce
            raise CommandError(
                f"--connect found {counted(group.size, 'process', 'processes')}. The demo takes 2 to {CLASSES}: each "
                f"holds at least one of the {CLASSES} digits."
            )
        parameters, losses = train_rank(digits, group, steps=steps, seed=seed, shuffle=shuffle)
        own = np.frombuffer(bytes.fromhex(digest(parameters)), np.uint8)
        everyone = group.all_gather(own[None])
        gradients = differentiate_parts(digits, seed)
        mine = np.array_split(np.arange(PARTS), group.size)[group.rank]
        brought: Any = PerReplica([gradients[index] for index in mine])
        total = digest(group.all_reduce(brought))
    if group.rank:
        return True
    ops = HierarchicalCopyAllReduce()
    alone = train_all(digits, ops=ops, devices=group.size, steps=steps, seed=seed, shuffle=shuffle).treefold
    same = bool((everyone == own).all())
    equal = digest(alone.parameters[0]) == digest(parameters) and alone.losses == losses
    where = counted(len(group.hosts), "host")
    print(f"{counted(steps, 'step')} on {where}: loss {losses[0]:.4f} at first, {losses[-1]:.4f} at last")
    print(f"{_verdict(holds=same)} All {group.size} processes end with the same bits: {digest(parameters)[:16]}…")
    print(f"{_verdict(holds=equal)} These, and all losses, are those of {group.size} devices of one process")
    divided = total == digest(all_reduce(list(gradients))[0])
    print(f"{_verdict(holds=divided)} {PARTS} gradients have the sum that they have in one process: {total[:16]}…")
    return same and equal and divided


def train_rank(
    digits: Digits, group: Group, *, steps: int, seed: int, shuffle: bool
) -> tuple[Parameters, tuple[float, ...]]:
    """Train this rank's replica on its part of every batch; return its parameters and the global losses."""
    rng = np.random.default_rng(seed)
    parameters: Parameters = copy_parameters(draw_parameters(SIZES, rng))
    velocity, losses = zeros_like(parameters), []
    held = None if shuffle else digits_of(group.size)
    for indices in draw_batches(len(digits.train), batch_size=BATCH_SIZE, steps=steps, rng=rng):
        batch = digits.train.pick(indices)
        part = deal(batch, group.size, held)[group.rank]
        loss, gradients = differentiate(parameters, part.images, part.labels, batch_size=len(batch))
        group.all_reduce(gradients, out=gradients)
        OPTIMIZER.update(parameters, velocity, gradients)
        losses.append(math.fsum(group.all_gather(np.array([loss]))))
    return parameters, tuple(losses)


def _verdict(*, holds: bool) -> str:
    return "ok    " if holds else "failed"
