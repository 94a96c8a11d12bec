"""gloo through ``torch.distributed``: one process per replica; it works in place."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from treefold.bench.arrays import Array
from treefold.bench.baselines import Baseline, Call, from_torch, to_torch
from treefold.bench.work import Work
from treefold.errors import PeerError

_OPS = {
    "sum": dist.ReduceOp.SUM,
    "mean": dist.ReduceOp.SUM,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "product": dist.ReduceOp.PRODUCT,
}

torch.set_num_threads(1)


class GlooBaseline(Baseline):
    """One replica."""

    has_all_replicas = False

    def __init__(self, work: Work, rank: int) -> None:
        """Store the work, and join the other replicas the first time."""
        super().__init__(work, rank)
        if not dist.is_initialized():
            meeting = Path(os.environ["TREEFOLD_BENCH_MEETING"]).as_uri()
            dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=work.devices)

    def load(self, *, is_zero: bool) -> None:
        self._tensors = [to_torch(column[0]) for column in self.new_inputs(is_zero=is_zero)]

    def forms(self) -> Mapping[str, Call]:
        """Return ``all_reduce``; for a batch, tensor by tensor, all in flight at once, and in one flat buffer."""
        if self.work.placement == "shared":
            raise PeerError("processes share no result")
        if self.work.op == "mean" and not self._tensors[0].is_floating_point():
            raise PeerError.mean_of_integers()
        if len(self._tensors) == 1:
            return {"all_reduce": self._in_flight}
        return {"all_reduce, all in flight": self._in_flight, "all_reduce, one flat buffer": self._flat}

    def _in_flight(self) -> list[Any]:
        op = _OPS[self.work.op]
        for handle in [dist.all_reduce(tensor, op, async_op=True) for tensor in self._tensors]:
            handle.wait()
        self._divide(self._tensors)
        return self._tensors

    def _flat(self) -> list[Any]:
        flat = torch.cat([tensor.reshape(-1) for tensor in self._tensors])
        dist.all_reduce(flat, _OPS[self.work.op])
        self._divide([flat])
        parts = flat.split([tensor.numel() for tensor in self._tensors])
        torch._foreach_copy_([tensor.reshape(-1) for tensor in self._tensors], list(parts))
        return self._tensors

    def _divide(self, tensors: list[Any]) -> None:
        if self.work.op == "mean":
            for tensor in tensors:
                tensor.div_(self.work.devices)

    def read(self, result: Any) -> list[list[Array]]:
        return [[from_torch(tensor)] for tensor in result]

    def barrier(self) -> None:
        dist.barrier()


make_baseline = GlooBaseline
