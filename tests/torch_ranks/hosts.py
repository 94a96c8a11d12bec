"""Ranks on one machine, as if they were on several hosts: between these, only gloo carries anything."""

import os

import bit_cases
import exact_cases
import exact_partial_cases
import numpy as np
import partial_ranks
import pretended_hosts
import torch
from torch import distributed

from torch_ranks import training


def connected(rank, hosts, **options):
    """Return a group over hosts; ``hosts``: the ranks of each."""
    return pretended_hosts.connected(distributed.group.WORLD, rank, hosts, **options)


def bits(rank, size, hosts, seeds, chunks):
    """Make the calls that these seeds draw; return what all ranks should have alike of each."""
    return pretended_hosts.bits(distributed.group.WORLD, rank, hosts, seeds, chunks)


def many(rank, size, hosts, dtype, replicas, count):
    """Return how many elements this rank has compared with one process, and how many differ."""
    return pretended_hosts.many(distributed.group.WORLD, rank, hosts, dtype, replicas, count)


def in_little_room(rank, size, hosts, length):
    """Sum values of which the host's memory for results holds one and no more; return the sums that were found."""
    os.environ["TREEFOLD_GROUP_BYTES"] = str(4 * length + 4096)
    with connected(rank, hosts) as group:
        return np.unique(group.all_reduce(np.full(length, 2.0**rank, np.float32))).tolist()


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


def partials(rank, size, hosts):
    """Return what ranks of pretended hosts have in common of sums that go on."""
    with connected(rank, hosts) as group:
        return [*partial_ranks.mean_over(group), partial_ranks.scattered_over(group)]


def exact_sums(rank, size, hosts):
    """Return a hash of exact sums of what all ranks have."""
    with connected(rank, hosts) as group:
        return exact_cases.digest_of(rank, size, group)


def differing_sums(rank, size, hosts):
    """Return which sums of hostile values have not the bits of one process."""
    with connected(rank, hosts, chunk_bytes=4096) as group:
        return exact_partial_cases.differing(group)
