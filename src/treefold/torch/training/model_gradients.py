"""Sums of all gradients of a model: they are taken after each pass, and their means are written once a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parallel import DistributedDataParallel

from treefold.errors import ArgumentError
from treefold.group import Group
from treefold.torch.training.digests import digest, names, plain_name
from treefold.torch.training.fsdp import ShardedGradients, ShardGroup, sharded_modules
from treefold.torch.training.whole import WholeGradients


class ModelGradients:
    """The sums of a model's gradients: one part for each module that FSDP2 cuts, and one for all other parameters."""

    def __init__(self, model: torch.nn.Module, group: Group | None, connect: Callable[[Any], Group]) -> None:
        """Prepare the model; all ranks call.

        Raises:
            ArgumentError: The model cannot be trained in micro-batches, or its wrappers have another number of ranks.

        """
        self._model, self._group, self._connect = model, group, connect
        self._wrappers = [one for one in model.modules() if isinstance(one, DistributedDataParallel)]
        for wrapper in self._wrappers:
            if wrapper.static_graph:
                raise ArgumentError(
                    "DistributedDataParallel(static_graph=True) cannot leave out its own reduction. Leave static_graph "
                    "out."
                )
            self._check_size(wrapper.process_group.size(), "DistributedDataParallel")
        self._shard_groups: dict[Any, ShardGroup] = {}
        self._sharded = [self._sharded_gradients(*found) for found in sharded_modules(model)]
        self._whole = WholeGradients(self._uncut(), group)

    @property
    def nbytes(self) -> int:
        """The bytes of memory that partial sums take on this rank."""
        return sum(one.nbytes for one in self._parts())

    @property
    def used(self) -> list[bool]:
        """For each trained parameter, whether a micro-batch of this rank has given it a gradient."""
        return [flag for one in self._parts() for flag in one.used]

    def begin(self) -> None:
        """Begin a step: drop all sums, and find out again which layers there are and which parameters are trained."""
        self._norms = [(name, one) for name, one in self._model.named_modules() if isinstance(one, _NormBase)]
        trained = self._uncut()
        if [*map(id, trained.values())] != [*map(id, self._whole.parameters.values())]:
            self._whole = WholeGradients(trained, self._group)
        for one in self._parts():
            one.begin()

    @contextmanager
    def one_pass(self, words: int) -> Iterator[None]:
        """Keep frameworks from reducing gradients during a micro-batch of weight ``words``, in units of 2**-64."""
        with ExitStack() as stack:
            for wrapper in self._wrappers:
                stack.enter_context(wrapper.no_sync())
            for group in self._shard_groups.values():
                group.begin(words)
            for one in self._parts():
                one.clear()
            yield

    def take(self, weight: Any) -> None:
        """Add the gradients of the micro-batch to the sums, times its weight, and clear them."""
        for one in self._parts():
            one.take(weight)

    def observe(self) -> dict[str, str]:
        """Return the digests of the gradients of a micro-batch of weight 0, by name; nothing is added."""
        known = names(self._model)
        for one in self._sharded:
            one.take(0)  # hands the gradients that FSDP has kept to ``observed``
        found = [pair for one in self._parts() for pair in one.observed()]
        return {f"gradient {known[parameter]}": digest(contents) for parameter, contents in found}

    def write(self, words: int, used: list[bool]) -> None:
        """Set ``.grad`` to the means over all ranks.

        Args:
            words: The sum of all weights, in units of 2**-64.
            used: For each parameter of ``used``, in that order, whether it is true on any rank.

        """
        for one in self._parts():
            flags, used = used[: len(one.used)], used[len(one.used) :]
            one.write(words, flags)

    def _parts(self) -> list[WholeGradients | ShardedGradients]:
        return [self._whole, *self._sharded]

    def _uncut(self) -> dict[str, torch.nn.Parameter]:
        """Return the trained parameters that are not cut, by name.

        Raises:
            ArgumentError: A parameter is a DTensor that FSDP2 does not manage.

        """
        cut = {id(one.sharded_param) for part in self._sharded for one in part.every}
        known = names(self._model)
        trained = {name: one for one, name in known.items() if one.requires_grad and id(one) not in cut}
        for name, one in trained.items():
            if hasattr(one, "device_mesh"):
                raise ArgumentError(
                    f"{name} is a DTensor that FSDP2 does not manage. MicroBatches has no tensor parallelism, whose "
                    "sums lie inside a micro-batch. Cut the model with fully_shard."
                )
        return trained

    def check_layers(self) -> None:
        """Refuse layers that keep state from one micro-batch to the next.

        Raises:
            ArgumentError: There is such a layer. The error names it.

        """
        for name, one in self._norms:
            if one.training and one.track_running_stats:
                raise ArgumentError(
                    f"{plain_name(name, self._model)} is a {type(one).__name__} in training mode, which keeps "
                    "statistics from one micro-batch to the next, so that their order shows. Use GroupNorm or "
                    "LayerNorm, track_running_stats=False, or eval() for this layer."
                )

    def _sharded_gradients(self, name: str, module: Any, param_group: Any) -> ShardedGradients:
        """Return the sums of one FSDP module, and connect the ranks that hold its parts and its copies."""
        info = param_group.mesh_info
        shards, replicas = info.shard_process_group, getattr(info, "replicate_process_group", None)
        count = 1 if replicas is None else replicas.size()
        self._check_size(shards.size() * count, f"fully_shard of {name}")
        if shards not in self._shard_groups:
            self._shard_groups[shards] = ShardGroup(self._connect(shards) if shards.size() > 1 else None)
        others = self._connect(replicas) if count > 1 else None
        return ShardedGradients(name, module, param_group, self._shard_groups[shards], others)

    def _check_size(self, size: int, owner: str) -> None:
        """Refuse a wrapper, named by ``owner``, that has another number of ranks than the group."""
        ranks = 1 if self._group is None else self._group.size
        if size != ranks:
            raise ArgumentError(
                f"MicroBatches got {ranks} {'rank' if ranks == 1 else 'ranks'}, and {owner} has {size}. Pass "
                "group=torch.distributed.group.WORLD, or the group of all ranks that train this model."
            )
