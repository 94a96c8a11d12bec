"""Sums of booleans, and means of whole numbers."""

import numpy as np
import torch
from torch import distributed
from torch.distributed import ReduceOp
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

DTYPES = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]


def brought(dtype, rank):
    """Return a rank's numbers: the least and the greatest, which no sum may overflow, and others; 64 times."""
    info = np.iinfo(dtype)
    ends = [info.min, info.max, info.min if rank else info.max, info.max - rank, info.min + 3 * rank]
    return [*ends, 2**rank, 0, -(2**rank) if info.min else 3] * 64


def means(rank, size, root):
    """Return, by dtype, the means by all_reduce, by reduce on the root, and this rank's part by reduce_scatter."""
    found = {}
    for dtype in DTYPES:
        numbers = np.array(brought(dtype, rank), dtype)
        everywhere, at_root = (torch.from_numpy(numbers.copy()) for _ in range(2))
        distributed.all_reduce(everywhere, ReduceOp.AVG)
        distributed.reduce(at_root, root, ReduceOp.AVG)
        part = torch.zeros(len(numbers), dtype=everywhere.dtype)
        distributed.reduce_scatter_tensor(part, torch.from_numpy(np.tile(numbers, size)), ReduceOp.AVG)
        found[dtype] = [one.numpy().tolist() for one in (everywhere, at_root, part)]
    return found


def booleans(rank, size):
    """Return sums and products of booleans, and what a DTensor says of its own, of which rank 1 has the one that is."""
    of_all = []
    for op in (ReduceOp.SUM, ReduceOp.PRODUCT):
        tensor = torch.tensor([rank == 0, True, False, rank != 1])
        distributed.all_reduce(tensor, op)
        of_all.append(tensor.tolist())
    mesh = distributed.init_device_mesh("cpu", (size,))
    values = distribute_tensor(torch.arange(size) == 1, mesh, [Shard(0)])
    return [
        *of_all,
        values.any().redistribute(mesh, [Replicate()]).to_local().item(),
        values.all().full_tensor().item(),
    ]


def log_in_lightning(rank, size):
    """Train by Lightning, in the process group that there is; return the mean over ranks and batches that it logs."""
    import lightning.pytorch as pl  # noqa: PLC0415 - takes seconds
    from lightning.pytorch.plugins.environments import LightningEnvironment  # noqa: PLC0415 - as above

    class Launched(LightningEnvironment):
        creates_processes_externally = True

        def world_size(self):
            return size

        def global_rank(self):
            return rank

        def local_rank(self):
            return rank

        def set_world_size(self, size):
            pass

        def set_global_rank(self, rank):
            pass

    class Line(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def training_step(self, batch, index):
            self.log("mean", 2.0**rank + 8 * index, sync_dist=True, on_epoch=True, on_step=False)
            return self.layer(batch).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    strategy = pl.strategies.DDPStrategy(process_group_backend="treefold", cluster_environment=Launched())
    trainer = pl.Trainer(
        max_epochs=1, accelerator="cpu", devices=size, strategy=strategy, logger=False, enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=False,
    )  # fmt: skip
    trainer.fit(Line(), torch.utils.data.DataLoader(torch.arange(16.0).reshape(8, 2) / 16, batch_size=2))
    return trainer.callback_metrics["mean"].item(), type(distributed.group.WORLD).__name__
