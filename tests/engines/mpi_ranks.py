"""One rank of the suite of all channels over MPI: ``python mpi_ranks.py FUNCTION OPTIONS`` prints what it returned."""

import json
import sys
from pathlib import Path

import numpy as np
from mpi4py import MPI

sys.path.append(str(Path(__file__).parent.parent))

import channel_conformance
import pretended_hosts

from treefold.engines import mpi
from treefold.engines.mpi import MpiChannel


def connect_often(channel):
    """Connect five times, each rank as if on a host of its own; return how many communicators are kept after each.

    The last rank closes each group only when it has connected the next one.
    """
    hosts = [[rank] for rank in range(channel.size)]
    groups, kept = [], []
    for number in range(5):
        groups.append(pretended_hosts.connected(MPI.COMM_WORLD, channel.rank, hosts))
        total = groups[-1].all_reduce(np.full((3, 50_000)[number % 2], 2.0**channel.rank))
        assert (total == 2**channel.size - 1).all()
        if channel.rank < channel.size - 1 or number == 4:
            groups[-1].close()
        elif number:
            groups[-2].close()
        kept.append(len(mpi._kept))
    return kept


def bits(channel, hosts, first, calls, chunks):
    """Make the calls that these seeds draw; return what all ranks should have alike of each."""
    return pretended_hosts.bits(MPI.COMM_WORLD, channel.rank, hosts, range(first, first + calls), chunks)


def many(channel, hosts, dtype, replicas, count):
    """Return how many elements this rank has compared with one process, and how many differ."""
    return pretended_hosts.many(MPI.COMM_WORLD, channel.rank, hosts, dtype, replicas, count)


channel = MpiChannel(MPI.COMM_WORLD.Dup())
rank = channel.rank
function = globals().get(sys.argv[1]) or getattr(channel_conformance, sys.argv[1])
returned = function(channel, **json.loads(sys.argv[2]))
everything = MPI.COMM_WORLD.gather(repr(returned))
if rank == 0:
    sys.stdout.write(f"returned {json.dumps(everything)}\n")
