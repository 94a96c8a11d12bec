"""One rank of the suite of all channels over MPI: ``python mpi_ranks.py FUNCTION OPTIONS`` prints what it returned."""

import json
import sys
from pathlib import Path

import numpy as np
from mpi4py import MPI

sys.path.append(str(Path(__file__).parent.parent))

import channel_conformance

import treefold
from treefold.engines import mpi
from treefold.engines.mpi import MpiChannel
from treefold.group import joining


def connect_often(channel):
    """Connect five times, each rank as if on a host of its own; return how many communicators are kept after each.

    The last rank closes each group only when it has connected the next one.
    """
    joining.host_key = lambda: f"host {channel.rank}"
    groups, kept = [], []
    for number in range(5):
        groups.append(treefold.connect(MPI.COMM_WORLD))
        total = groups[-1].all_reduce(np.full((3, 50_000)[number % 2], 2.0**channel.rank))
        assert (total == 2**channel.size - 1).all()
        if channel.rank < channel.size - 1 or number == 4:
            groups[-1].close()
        elif number:
            groups[-2].close()
        kept.append(len(mpi._kept))
    return kept


channel = MpiChannel(MPI.COMM_WORLD.Dup())
rank = channel.rank
function = globals().get(sys.argv[1]) or getattr(channel_conformance, sys.argv[1])
returned = function(channel, **json.loads(sys.argv[2]))
everything = MPI.COMM_WORLD.gather(repr(returned))
if rank == 0:
    sys.stdout.write(f"returned {json.dumps(everything)}\n")
