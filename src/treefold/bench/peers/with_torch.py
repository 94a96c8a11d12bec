"""PyTorch in one process: ``add(out=)``, its multi-tensor form, and the sum of a stack."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import torch

from treefold.bench.contents import Array
from treefold.bench.peers.interface import Call, Peer
from treefold.bench.peers.torch_arrays import to_numpy, to_torch
from treefold.errors import PeerError

_OPS = {"sum": torch.add, "mean": torch.add, "min": torch.minimum, "max": torch.maximum, "product": torch.mul}

torch.set_num_threads(int(os.environ["TREEFOLD_BENCH_THREADS"]))


class TorchPeer(Peer):
    """All replicas in one process, the threads of a tensor operation as many as treefold has."""

    def load(self, *, is_zero: bool) -> None:
        """Take new contributions, and given tensors for results."""
        self._columns = [[to_torch(array) for array in column] for column in self.new_inputs(is_zero=is_zero)]
        if self.work.placement == "out-of-place" and not hasattr(self, "_given"):
            self._given = [[torch.ones_like(tensor) for tensor in column] for column in self._columns]

    def forms(self) -> Mapping[str, Call]:
        """Return three forms of a sum, one of anything else."""
        if self.work.op == "mean" and not self._columns[0][0].is_floating_point():
            raise PeerError.mean_of_integers()
        forms: dict[str, Callable[[], Any]] = {f"{_OPS[self.work.op].__name__}(out=)": self._one_by_one}
        if self.work.op in {"sum", "mean"} and self.work.devices > 1:
            forms["_foreach_add_"] = self._all_at_once
            forms["stack().sum(out=)"] = self._stacked
        return forms

    def _ends(self) -> list[list[Any]]:
        if self.work.placement == "in-place":
            return self._columns
        if self.work.placement == "out-of-place":
            return self._given
        return [[torch.empty_like(column[0]) for _ in range(self.work.num_results)] for column in self._columns]

    def _one_by_one(self) -> list[list[Any]]:
        ends, op = self._ends(), _OPS[self.work.op]
        for column, targets in zip(self._columns, ends, strict=True):
            total = targets[0]
            if len(column) == 1:
                total.copy_(column[0])
            else:
                op(column[0], column[1], out=total)
            for tensor in column[2:]:
                op(total, tensor, out=total)
            self._finish(total)
            for target in targets[1:]:
                target.copy_(total)
        return ends

    def _all_at_once(self) -> list[list[Any]]:
        ends = self._ends()
        totals = [targets[0] for targets in ends]
        replicas = list(zip(*self._columns, strict=True))
        if totals[0] is not replicas[0][0]:
            torch._foreach_copy_(totals, replicas[0])
        for tensors in replicas[1:]:
            torch._foreach_add_(totals, tensors)
        for total in totals:
            self._finish(total)
        for targets in list(zip(*ends, strict=True))[1:]:
            torch._foreach_copy_(targets, totals)
        return ends

    def _stacked(self) -> list[list[Any]]:
        ends = self._ends()
        for column, targets in zip(self._columns, ends, strict=True):
            torch.sum(torch.stack(column), 0, dtype=column[0].dtype, out=targets[0])
            self._finish(targets[0])
            for target in targets[1:]:
                target.copy_(targets[0])
        return ends

    def _finish(self, total: Any) -> None:
        if self.work.op == "mean":
            total.div_(self.work.devices)

    def read(self, result: Any) -> list[list[Array]]:
        return [[to_numpy(tensor) for tensor in targets] for targets in result]


make_peer = TorchPeer
