"""A rank that ends MPI itself, with a group still open that it has used."""

import sys
from pathlib import Path

import numpy as np
from mpi4py import MPI

sys.path.append(str(Path(__file__).parent.parent))

import pretended_hosts

rank = MPI.COMM_WORLD.Get_rank()
group = pretended_hosts.connected(MPI.COMM_WORLD, rank, [[0], [1]])
assert (group.all_reduce(np.full(3, 2.0**rank)) == 3).all()
MPI.Finalize()
