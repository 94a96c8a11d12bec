"""The program of a rank of ranks.py that mpiexec has started, with MPI among the baselines."""

from __future__ import annotations

from mpi4py import MPI

from treefold.bench.ranks import Arrays, Runner, measure_here
from treefold.group import connect


def by_mpi(arrays: Arrays) -> Runner:
    """Return a function that reduces these arrays in place, with a call for each."""

    def run() -> None:
        for array in arrays:
            MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, array)

    return run


if __name__ == "__main__":
    measure_here(connect(MPI.COMM_WORLD), {"mpi": by_mpi})
