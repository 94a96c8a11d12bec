"""Groups of ranks that pretend to be on several hosts: on this one machine, but only an engine carries between hosts.

As for ``connect``, ``world`` is a process group of PyTorch or a communicator of MPI. The ranks of each host are
``hosts``.
"""

import dataclasses

import bit_cases

import treefold
from treefold.group.bootstrap import connecting

#: Ranks of each host: in blocks, round robin, unequal.
LAYOUTS = (
    ((0,), (1,)),
    ((0, 1), (2, 3)),
    ((0, 2), (1, 3)),
    ((0, 1, 2), (3,)),
    ((0,), (1, 2), (3, 4, 5)),
    ((0, 3, 6), (1, 4), (2, 5)),
    ((0, 4), (1, 5), (2,), (3,)),
    ((0,), (1,), (2,), (3,), (4,), (5,), (6,), (7,)),
)


def connected(world, rank, hosts, *, chunk_bytes=None, **options):
    """Return a group over hosts. Small chunks make many of small values."""
    host = next(number for number, ranks in enumerate(hosts) if rank in ranks)
    connecting.host_key = lambda: f"host {host}"
    group = treefold.connect(world, **options)
    if chunk_bytes:
        channel = group._link._channel
        channel.limits = dataclasses.replace(channel.limits, chunk_bytes=chunk_bytes)
    return group


def bits(world, rank, hosts, seeds, chunks):
    """Make the calls that these seeds draw; return what all ranks should have alike of each."""
    groups = [connected(world, rank, hosts, chunk_bytes=chunk) for chunk in chunks]
    ops = [bit_cases.ops_of(group) for group in groups]
    alike = []
    for seed in seeds:
        which = seed % len(groups)
        case = bit_cases.Case(seed, groups[which].size, chunks[which])
        alike.append(bit_cases.check(case, groups[which], ops[which]))
    for group in groups:
        group.close()
    return alike


def many(world, rank, hosts, dtype, replicas, count):
    """Return how many elements this rank has compared with one process, and how many differ."""
    compared, differing = 0, 0
    for chunk in (1 << 20, 1 << 16, 100_000):
        group = connected(world, rank, hosts, chunk_bytes=chunk)
        found = bit_cases.differences(group, dtype, replicas, -(-count // 3))
        compared, differing = compared + found[0], differing + found[1]
        group.close()
    return compared, differing
