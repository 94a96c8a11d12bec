"""Trains in micro-batches, plain and cut by FSDP2, and prints the SHAs; started as ranks of a job, or alone."""

import os
import sys
from pathlib import Path

import torch
from torch import distributed

sys.path.insert(0, str(Path(__file__).parents[1]))
from torch_ranks import micro_batches

torch.set_num_threads(1)
if "RANK" in os.environ:
    distributed.init_process_group("gloo")
    rank, size = distributed.get_rank(), distributed.get_world_size()
    kinds = ["plain", "fsdp", "hsdp"] if size % 2 == 0 else ["plain", "fsdp"]
else:
    rank, size, kinds = 0, 1, ["plain"]
print(*[micro_batches.train(rank, size, kind, "transformer")[0] for kind in kinds], flush=True)
if distributed.is_initialized():
    distributed.destroy_process_group()
