"""NumPy: ``np.add`` with ``out=``, then a copy for every other replica."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from treefold.bench.contents import Array
from treefold.bench.peers.interface import Call, Peer
from treefold.errors import PeerError

_UFUNCS: dict[str, np.ufunc] = {
    "sum": np.add,
    "mean": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "product": np.multiply,
}


class NumpyPeer(Peer):
    """One thread, no temporary arrays."""

    def load(self, *, is_zero: bool) -> None:
        """Take new contributions, and given arrays for results."""
        self._columns = self.new_inputs(is_zero=is_zero)
        if self.work.placement == "out-of-place" and not hasattr(self, "_given"):
            self._given = [[np.ones_like(array) for array in column] for column in self._columns]

    def forms(self) -> Mapping[str, Call]:
        """Return the one form."""
        if self.work.op == "mean" and np.dtype(self.work.dtype).kind in "iu":
            raise PeerError.mean_of_integers()
        return {f"np.{_UFUNCS[self.work.op].__name__}(out=)": self._run}

    def _run(self) -> list[list[Array]]:
        return [self._reduce(tensor, column) for tensor, column in enumerate(self._columns)]

    def _reduce(self, tensor: int, column: list[Array]) -> list[Array]:
        placement, ufunc = self.work.placement, _UFUNCS[self.work.op]
        if placement == "in-place":
            ends = column
        elif placement == "out-of-place":
            ends = self._given[tensor]
        else:
            ends = [np.empty_like(column[0]) for _ in range(self.work.num_results)]
        total = ends[0]
        if len(column) == 1:
            np.copyto(total, column[0])
        else:
            ufunc(column[0], column[1], out=total)
        for array in column[2:]:
            ufunc(total, array, out=total)
        if self.work.op == "mean":
            np.divide(total, len(column), out=total)
        for end in ends[1:]:
            np.copyto(end, total)
        return ends

    def read(self, result: Any) -> list[list[Array]]:
        columns: list[list[Array]] = result
        return columns


make_peer = NumpyPeer
