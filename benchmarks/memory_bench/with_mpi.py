"""MPI through mpi4py: one process per replica, ``Allreduce``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from mpi4py import MPI

from treefold.bench.arrays import Array
from treefold.bench.baselines import Baseline, Call
from treefold.dtypes import HALVES
from treefold.errors import PeerError

_OPS = {"sum": MPI.SUM, "mean": MPI.SUM, "min": MPI.MIN, "max": MPI.MAX, "product": MPI.PROD}


class MpiBaseline(Baseline):
    """One replica."""

    has_all_replicas = False

    def load(self, *, is_zero: bool) -> None:
        """Allocate a new contribution, and given arrays for results."""
        self._arrays = [column[0] for column in self.new_inputs(is_zero=is_zero)]
        if self.work.placement != "in-place" and not hasattr(self, "_given"):
            self._given = [np.ones_like(array) for array in self._arrays]

    def forms(self) -> Mapping[str, Call]:
        """Return ``Allreduce``; for a batch, array by array and in one flat buffer."""
        if self.work.placement == "shared":
            raise PeerError("processes share no result")
        if self.work.dtype in HALVES:
            raise PeerError.lacks("MPI", self.work.dtype)
        if self.work.op == "mean" and self._arrays[0].dtype.kind in "iu":
            raise PeerError.mean_of_integers()
        if len(self._arrays) == 1:
            return {"Allreduce": self._one_by_one}
        return {"Allreduce, one by one": self._one_by_one, "Allreduce, one flat buffer": self._flat}

    def _one_by_one(self) -> list[Array]:
        op = _OPS[self.work.op]
        if self.work.placement == "in-place":
            ends = self._arrays
            for array in ends:
                MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, array, op)
        else:
            ends = self._given
            for array, end in zip(self._arrays, ends, strict=True):
                MPI.COMM_WORLD.Allreduce(array, end, op)
        self._divide(ends)
        return ends

    def _flat(self) -> list[Array]:
        flat = np.concatenate([array.reshape(-1) for array in self._arrays])
        MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, flat, _OPS[self.work.op])
        self._divide([flat])
        ends = self._arrays if self.work.placement == "in-place" else self._given
        start = 0
        for end in ends:
            end[...] = flat[start : start + end.size].reshape(end.shape)
            start += end.size
        return ends

    def _divide(self, arrays: list[Array]) -> None:
        if self.work.op == "mean":
            for array in arrays:
                np.divide(array, self.work.devices, out=array)

    def read(self, result: Any) -> list[list[Array]]:
        return [[array] for array in result]

    def barrier(self) -> None:
        MPI.COMM_WORLD.Barrier()


def rank() -> int:
    """Return the replica of this process."""
    return int(MPI.COMM_WORLD.Get_rank())


def finish() -> None:
    """Exit as MPI requires; its launcher takes any other exit for a crash."""
    MPI.Finalize()


make_baseline = MpiBaseline
