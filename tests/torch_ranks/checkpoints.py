"""State that is saved, loaded and handed out, as one rank does it."""

import warnings
from pathlib import Path

import torch
from torch import distributed, nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.format_utils import BroadcastingTorchSaveReader, DynamicMetaLoadPlanner
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel

from torch_ranks import training

_WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)
_FROM_RANK_0 = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)


def save_and_load(rank, size, folder):
    """Save a sharded model, change it, and load it."""
    model = fully_shard(training.model_of(), mesh=distributed.init_device_mesh("cpu", (size,)))
    before = training.bits_of_sharded(model)
    checkpoint.save({"model": get_model_state_dict(model)}, checkpoint_id=folder)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    was_changed = training.bits_of_sharded(model) != before
    state = {"model": get_model_state_dict(model)}
    checkpoint.load(state, checkpoint_id=folder)
    set_model_state_dict(model, state["model"])
    return was_changed, training.bits_of_sharded(model) == before


def save_in_the_background(rank, size, folder):
    """Save a sharded model while it may go on, and load it; tell whether it is what was saved."""
    model = fully_shard(training.model_of(), mesh=distributed.init_device_mesh("cpu", (size,)))
    saved = training.bits_of_sharded(model)
    checkpoint.async_save({"model": get_model_state_dict(model)}, checkpoint_id=folder).result()
    distributed.barrier()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    state = {"model": get_model_state_dict(model)}
    checkpoint.load(state, checkpoint_id=folder)
    return training.bits_of_sharded(model) == saved


def hand_out(rank, size, kind):
    """Rank 0 alone has the state of a model and of its optimizer, and hands it out; return what has not arrived."""
    model = training.model_of(seed=rank)
    whole = training.model_of(seed=7).state_dict()
    wrapped = DistributedDataParallel(model) if kind == "ddp" else fully_shard(model)
    optimizer = torch.optim.Adam(wrapped.parameters())
    training.loss_of(wrapped, rank, 0).backward()
    optimizer.step()
    set_model_state_dict(wrapped, dict(whole) if rank == 0 else {}, options=_FROM_RANK_0)
    state = get_optimizer_state_dict(wrapped, optimizer, options=_WHOLE)
    set_optimizer_state_dict(wrapped, optimizer, state if rank == 0 else {}, options=_FROM_RANK_0)
    found = get_model_state_dict(wrapped, options=StateDictOptions(full_state_dict=True))
    return {name for name in whole if not torch.equal(found[name], whole[name])}


def optimizer_of_flat_shards(rank, size):
    """FSDP1 gathers the state of an optimizer; return the shapes of its averages."""
    warnings.simplefilter("ignore")  # PyTorch is to drop it
    model = FullyShardedDataParallel(nn.Linear(7, 5), device_id=torch.device("cpu"))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 7)).sum().backward()
    optimizer.step()
    state = FullyShardedDataParallel.optim_state_dict(model, optimizer)["state"]
    return {name: tuple(of_one["exp_avg"].shape) for name, of_one in state.items()}


def load_one_file(rank, size, folder):
    """Rank 0 reads what ``torch.save`` has written, for all ranks."""
    path = Path(folder, "state.pt")
    if rank == 0:
        torch.save({"w": torch.arange(6.0)}, path)
    state = {"w": torch.zeros(6)}
    reader, planner = BroadcastingTorchSaveReader(), DynamicMetaLoadPlanner()
    checkpoint.load(state, storage_reader=reader, planner=planner, checkpoint_id=path)
    return state["w"].tolist()
