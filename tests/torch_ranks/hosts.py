"""Ranks on one machine, as if they were on several hosts: between these, only gloo carries anything."""

import dataclasses

import bit_cases
from torch import distributed

import treefold
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
