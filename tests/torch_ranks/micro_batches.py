"""Trainings in micro-batches, which have the same bits on any number of ranks, however a model is cut."""

import contextlib
from unittest import mock

import torch
from torch import distributed, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from treefold.torch import MicroBatches, clip_grad_norm_
from treefold.torch.training.device_sum import DeviceSum

PER_STEP = 7  # no multiple of the numbers of ranks
OPTIMIZERS = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=1e-2, momentum=0.9),
}


class Transformer(nn.Module):
    """An encoder of a few layers with tied, frozen, unused and seldom used parameters, and dropout."""

    def __init__(self, width=24, layers=2):
        super().__init__()
        self.words = nn.Embedding(50, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.1, batch_first=True) for _ in range(layers)
        )
        self.last = nn.Linear(width, 50)
        self.last.weight = self.words.weight
        self.frozen = nn.Parameter(torch.full((3,), 0.5), requires_grad=False)
        self.unused = nn.Parameter(torch.ones(5))
        self.seldom = nn.Parameter(torch.ones(width))

    def forward(self, words, *, is_seldom=False):
        hidden = self.words(words)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.last(hidden * self.seldom if is_seldom else hidden) * self.frozen.sum()

    def loss(self, model, index):
        words = torch.randint(50, (2, 9))  # by the seeded generator: another text in each micro-batch
        scores = model(words[:, :-1], is_seldom=index % 3 == 1)
        return nn.functional.cross_entropy(scores.flatten(0, 1), words[:, 1:].flatten())


class Convolutions(nn.Module):
    """A small network of convolutions with dropout."""

    def __init__(self, channels=9):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, channels, 3, padding=1),
            nn.GroupNorm(3, channels),
            nn.ReLU(),
            nn.Dropout2d(0.2),
            nn.Conv2d(channels, channels, 3, stride=2),
            nn.ReLU(),
            nn.Flatten(),
        )
        self.last = nn.Linear(9 * channels, 10)

    def forward(self, images):
        return self.last(self.layers(images))

    def loss(self, model, index):  # noqa: ARG002 - as the other one
        return nn.functional.cross_entropy(model(torch.randn(4, 1, 8, 8)), torch.randint(10, (4,)))


NETWORKS = {"transformer": Transformer, "convolutions": Convolutions}


def cut(model, kind, size):
    """Wrap or cut a model for all ranks; ``hsdp``: in two rows, ``row``: replicated alone."""
    if kind == "ddp":
        return DistributedDataParallel(model, find_unused_parameters=True)
    if kind in {"fsdp", "hsdp", "row"}:
        shape = {"fsdp": (size,), "hsdp": (2, size // 2), "row": (size, 1)}[kind]
        mesh = distributed.init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")[-len(shape) :])
        for layer in model.layers:
            if any(True for _ in layer.parameters()):
                fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    return model


def prepared(kind, network, optimizer, size, seed=1):
    torch.manual_seed(seed)
    network = NETWORKS[network]().to(torch.float32)
    model = cut(network, kind, size)
    group = distributed.group.WORLD if distributed.is_initialized() else None
    return network, model, OPTIMIZERS[optimizer](model.parameters()), MicroBatches(model, group, per_step=PER_STEP)


def train(rank, size, kind, network, optimizer="adamw", *, steps=3, is_autocast=False, fault=None):
    """Train, and return the SHA, the logged losses and the norms; ``fault``: what is done wrong."""
    network, model, optimizer, run = prepared(kind, network, optimizer, size)
    losses, norms, digests = [], [], []
    for step in range(steps):
        for index in run.mine(step):
            with run.micro_batch(step, index, weight=index + 1):
                if fault == "dropout":
                    torch.manual_seed(rank)
                autocast = torch.autocast("cpu", torch.bfloat16) if is_autocast else contextlib.nullcontext()
                with autocast:
                    loss = network.loss(model, index)
                loss.backward()
                run.log(loss=loss)
        if fault == "norm":
            run.reduce()
            norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5))
        else:
            norms.append(run.reduce(max_norm=0.5))
        optimizer.step()
        losses.append(run.logged["loss"])
        digests.append(run.digests(optimizer))
    return run.sha256(optimizer), losses, [float(norm) for norm in norms], digests


def trained(rank, size, *arguments, **options):
    """Return what a test compares of ``train``."""
    return train(rank, size, *arguments, **options)[:3]


def stopped(rank, size, kind, network, path, steps):
    """Go on with what lies at a path, if anything does, for some steps; save it there, and return the SHA."""
    network, model, optimizer, run = prepared(kind, network, "adamw", size)
    if run_state := torch.load(path) if path.exists() else None:
        model.load_state_dict(run_state["model"])
        optimizer.load_state_dict(run_state["optimizer"])
        run.load_state_dict(run_state["run"])
    for step in range(run.next_step, run.next_step + steps):
        for index in run.mine(step):
            with run.micro_batch(step, index):
                network.loss(model, index).backward()
        run.reduce(max_norm=0.5)
        optimizer.step()
    if distributed.is_initialized():
        distributed.barrier()
    if rank == 0:
        saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "run": run.state_dict()}
        torch.save(saved, path)
    return run.sha256(optimizer)


def checked(rank, size, kind, fault):
    """Call ``check`` on a run with a fault; return whether it left everything as it was."""
    network, model, optimizer, run = prepared(kind, "transformer", "adamw", size)
    own = torch.Generator()
    own.seed()

    def compute(_step, index):
        if fault == "dropout":
            torch.manual_seed(rank)
        loss = network.loss(model, index)
        if fault == "generator":
            loss = loss * torch.rand((), generator=own)
        loss.backward()
        run.log(loss=loss)

    before, state = run.sha256(optimizer), torch.get_rng_state()
    run.check(optimizer, compute)
    return before == run.sha256(optimizer), bool((torch.get_rng_state() == state).all())


def refused(rank, size, kind):
    """Do what MicroBatches refuses."""
    network, model, _, run = prepared(
        {"group": "ddp", "failed": "plain"}.get(kind, "fsdp"), "transformer", "adamw", size
    )
    if kind == "group":
        MicroBatches(model, None, per_step=2)
    elif kind == "reduce_dtype":
        fully_shard(linear := nn.Linear(4, 4), mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.bfloat16))
        MicroBatches(linear, distributed.group.WORLD, per_step=2)
    elif kind == "divide":
        fully_shard(linear := nn.Linear(4, 4))
        linear.set_gradient_divide_factor(2.0)
        MicroBatches(linear, distributed.group.WORLD, per_step=2)
    elif kind == "twice":
        [index, *_] = run.mine(0)
        with run.micro_batch(0, index):
            network.loss(model, index).backward()
            network.loss(model, index).backward()
    elif kind == "sync":
        [index, *_] = run.mine(0)
        model.set_requires_gradient_sync(False)
        with run.micro_batch(0, index):
            network.loss(model, index).backward()
    elif kind == "fused":
        run.check(torch.optim.AdamW(model.parameters(), fused=True), lambda *_: None)
    elif kind == "failed":
        run.mine(0)
        with contextlib.suppress(ZeroDivisionError), run.micro_batch(0, rank):
            if rank == 1:
                raise ZeroDivisionError
            network.loss(model, 0)
        run.reduce()


def norms(rank, size, kind):
    """Return the norm of what all ranks reduce, and the exact one of the whole tensors."""
    network, model, _, run = prepared(kind, "transformer", "adamw", size)
    for index in run.mine(0):
        with run.micro_batch(0, index):
            network.loss(model, index).backward()
    found = run.reduce(max_norm=1e9)
    return float(found), float(clip_grad_norm_(model.parameters(), 1e9))


def trained_with(rank, size, kind, arguments, options):
    return trained(rank, size, kind, *arguments, **options)


def as_on_a_gpu(rank, size, kind, arguments, options):
    """Return what ``trained`` does, with sums as those of tensors on a GPU are made, and whether there was one."""
    made = []
    with mock.patch.object(DeviceSum, "takes", side_effect=lambda *_: made.append(True) or True):
        return trained(rank, size, kind, *arguments, **options), any(made)


def with_digests(rank, size, kind, fault):
    return train(rank, size, kind, "transformer", fault=fault)


def static_graph(rank, size):
    MicroBatches(DistributedDataParallel(nn.Linear(2, 2), static_graph=True), distributed.group.WORLD, per_step=1)


def added_in_floats(monkeypatch, order):
    """Train one step whose gradients ``+=`` adds, in an order; return the SHA."""
    network, model, optimizer, run = prepared("plain", "transformer", "adamw", 1)
    run.mine(0)
    parts = run._gradients._parts()
    sums = {}

    def take(part, weight):
        for one in part.parameters.values():
            if one.grad is not None:
                sums[one] = sums[one] + one.grad if one in sums else one.grad
        part.clear()

    monkeypatch.setattr(type(parts[0]), "take", take)
    for index in order:
        with run.micro_batch(0, index):
            network.loss(model, index).backward()
    for one, total in sums.items():
        one.grad = total / PER_STEP
    optimizer.step()
    return run.sha256(optimizer)
