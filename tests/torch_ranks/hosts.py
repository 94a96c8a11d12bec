"""Ranks on one machine, as if they were on several hosts: between these, only gloo carries anything."""

import dataclasses
import os

import bit_cases
import numpy as np
import torch
from torch import distributed

import treefold
from torch_ranks import training
from treefold.group import joining


def connected(rank, hosts, *, chunk_bytes=None, **options):
    """Return a group over hosts; ``hosts``: the ranks of each. Small chunks make many of small values."""
    host = next(number for number, ranks in enumerate(hosts) if rank in ranks)
    joining.host_key = lambda: f"host {host}"
    group = treefold.connect(distributed.group.WORLD, **options)
    if chunk_bytes:
        channel = group._link._channel
        channel.limits = dataclasses.replace(channel.limits, chunk_bytes=chunk_bytes)
    return group


def bits(rank, size, hosts, seeds, chunks):
    """Make the calls that these seeds draw; return what all ranks should have alike of each."""
    groups = [connected(rank, hosts, chunk_bytes=chunk) for chunk in chunks]
    ops = [bit_cases.ops_of(group) for group in groups]
    alike = []
    for seed in seeds:
        which = seed % len(groups)
        alike.append(bit_cases.check(bit_cases.Case(seed, size, chunks[which]), groups[which], ops[which]))
    for group in groups:
        group.close()
    return alike


def many(rank, size, hosts, dtype, replicas, count):
    """Return how many elements this rank has compared with one process, and how many differ."""
    compared, differing = 0, 0
    for chunk in (1 << 20, 1 << 16, 100_000):
        group = connected(rank, hosts, chunk_bytes=chunk)
        found = bit_cases.differences(group, dtype, replicas, -(-count // 3))
        compared, differing = compared + found[0], differing + found[1]
        group.close()
    return compared, differing


def in_little_room(rank, size, hosts, length):
    """Sum values of which the host's memory for results holds one and no more; return the sums that were found."""
    os.environ["TREEFOLD_GROUP_BYTES"] = str(4 * length + 4096)
    with connected(rank, hosts) as group:
        return np.unique(group.all_reduce(np.full(length, 2.0**rank, np.float32))).tolist()


def refused(rank, size, hosts):
    """Ask for a guarantee that no group over hosts gives."""
    connected(rank, hosts, guarantee="engine")


def train(rank, size, hosts):
    """Train under DDP over gloo, with the hook; return what was learnt."""
    return training.train(rank, size, {}, "all_reduce_hook", state=connected(rank, hosts))


def frameworks(rank, size, hosts):
    """Reduce values of other frameworks, small and large; return the framework and the bytes of each result."""
    import jax.numpy as jnp  # noqa: PLC0415 - takes seconds
    import tensorflow as tf  # noqa: PLC0415 - as above

    found = []
    with connected(rank, hosts) as group:
        for make in (torch.from_numpy, jnp.asarray, tf.constant):
            for length in (5, 7001):
                got = group.all_reduce({"w": make(bit_cases.contribution(1, rank, 0, "float32", (length,)))}, "mean")
                found.append((type(got["w"]).__module__.partition(".")[0], np.asarray(got["w"]).tobytes()))
        half = torch.arange(20_000).to(torch.bfloat16) * 2**rank
        group.all_reduce(half, out=half)
        found.append(("in place", half.view(torch.int16).tolist()))
    return found
