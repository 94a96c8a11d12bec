"""One rank of the suite of all channels over MPI: ``python mpi_ranks.py FUNCTION OPTIONS`` prints what it returned."""

import json
import sys
from pathlib import Path

from mpi4py import MPI

sys.path.append(str(Path(__file__).parent.parent))

import channel_conformance

from treefold.engines.mpi import MpiChannel

channel = MpiChannel(MPI.COMM_WORLD.Dup())
rank = channel.rank
returned = getattr(channel_conformance, sys.argv[1])(channel, **json.loads(sys.argv[2]))
everything = MPI.COMM_WORLD.gather(repr(returned))
if rank == 0:
    sys.stdout.write(f"returned {json.dumps(everything)}\n")
