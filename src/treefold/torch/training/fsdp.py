"""Exact sums of the gradients of modules that FSDP2 cuts over ranks, or that HSDP cuts and replicates.

FSDP's own reduce-scatter rounds in every pass. Here, each pass adds all ranks' contributions to a partial sum of this
rank's part. FSDP gets -0 in place of the reduced gradient, so what it accumulates does not change. This replaces a step
of ``foreach_reduce`` in ``torch.distributed.fsdp``, 2.13.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import distributed

from treefold.backends import backend_of
from treefold.backends.numpy_partial import MOST_WEIGHT
from treefold.errors import ArgumentError, FrameworkError
from treefold.group import Group
from treefold.partials.partial_sum import PartialSum, add_scattered, finish_between
from treefold.torch.training.device_sum import DeviceSum, in_numpy

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule

_WEIGHT_BYTES = MOST_WEIGHT.bit_length() // 8
#: Dtypes in which FSDP divides gradients by a power of two before its reduce-scatter, unless its factor is set to 1.
_DIVIDED_BEFORE = (torch.float16, torch.float64)


class ShardGroup:
    """The ranks over which FSDP2 cuts modules, and in ``words`` the weight of each rank's current micro-batch."""

    def __init__(self, group: Group | None) -> None:
        """Begin with weight 0. ``group``: the ranks; None if one rank holds all parts."""
        self.group = group
        self.words: list[int] = [0]

    def begin(self, words: int) -> None:
        """Exchange the weights of the micro-batches that begin; all ranks of the group call.

        Args:
            words: The weight of this rank's micro-batch, in units of 2**-64.

        """
        self.words = [words]
        if self.group is not None:
            mine = np.frombuffer(words.to_bytes(_WEIGHT_BYTES, "little"), np.uint8)
            rows = self.group.all_gather(mine[None])
            self.words = [int.from_bytes(row.tobytes(), "little") for row in rows]


class ShardedGradients:
    """The exact weighted sum of one FSDP module's gradients, for this rank's part.

    FSDP calls this object as the module's reduce-scatter, once in every backward pass.
    """

    def __init__(
        self, name: str, module: FSDPModule, param_group: Any, shards: ShardGroup, replicas: Group | None
    ) -> None:
        """Replace the module's reduce-scatter by this object, unless one rank holds all parts.

        Args:
            name: The module's name, for errors.
            module: The module, which has one group of parameters.
            param_group: FSDP's ``FSDPParamGroup`` of the module.
            shards: The ranks that hold the parts.
            replicas: The ranks that hold the same part; None if only this rank does.

        Raises:
            ArgumentError: The module's settings make FSDP divide gradients, or round them before they are added.

        """
        self.every = list(param_group.fsdp_params)
        self.parameters = [one for one in self.every if one.sharded_param.requires_grad]
        self._name, self._param_group, self._shards, self._replicas = name, param_group, shards, replicas
        dtype = self.parameters[0].sharded_param.dtype if self.parameters else torch.float32
        self._dtype = dtype
        _check(name, param_group, dtype)
        sent = param_group.mp_policy.reduce_dtype or param_group.mp_policy.param_dtype or dtype
        if sent in _DIVIDED_BEFORE:
            module.set_gradient_divide_factor(1.0)
        if shards.group is not None:
            module.set_custom_reduce_scatter(self)
        module.set_requires_all_reduce(False, recurse=False)
        module.set_reduce_scatter_unused_params(True, recurse=False)
        module.register_forward_hook(lambda *_: self._watch())
        self._watched = 0
        self._partial: PartialSum | DeviceSum | None = None
        self.begin()

    @property
    def nbytes(self) -> int:
        """The bytes of memory that the partial sum takes."""
        return 0 if self._partial is None else self._partial.nbytes

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Return an uninitialised tensor; FSDP gets its buffers from its reduce-scatter object."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: Any,
        op: Any,  # noqa: ARG002 - FSDP's interface
        async_op: bool = False,  # noqa: ARG002, FBT001, FBT002
    ) -> None:
        """Add all ranks' contributions to this rank's part, and fill the output with -0."""
        self._add(input_tensor, group)
        output_tensor.fill_(-0.0)  # -0 + x is x, also for x = -0

    def begin(self) -> None:
        """Begin a step with no contributions."""
        if self._partial is not None:
            self._partial.clear()
        self._contributions: torch.Tensor | None = None
        self.used = [False] * len(self.parameters)

    def clear(self) -> None:
        """Prepare for the next micro-batch: drop the gradients that FSDP has kept."""
        self._passes, self._contributions = 0, None
        self._drop()

    def _drop(self) -> None:
        self._param_group._partial_reduce_output = None  # noqa: SLF001
        for one in self.parameters:
            one.sharded_param.grad = None

    def take(self, weight: Any) -> None:  # noqa: ARG002 - the ranks have told each other theirs
        """End a micro-batch, and add its gradients if one rank holds all parts.

        FSDP calls no reduce-scatter on one rank, but keeps the gradients. On several, ``__call__`` has added them.

        Raises:
            ArgumentError: FSDP was told not to reduce the gradients of this micro-batch.

        """
        if not self._param_group.reduce_grads:
            raise ArgumentError(
                f"{self._name} has set_requires_gradient_sync(False), so its gradients of this micro-batch would be "
                "lost. Leave it at True: MicroBatches accumulates them."
            )
        if self._shards.group is None:
            kept = self._param_group._partial_reduce_output  # noqa: SLF001
            gradients = [one.sharded_param.grad for one in self.parameters]
            if kept is None and any(one is not None for one in gradients):
                kept = torch.cat(
                    [
                        (torch.zeros_like(one.sharded_param) if gradient is None else gradient).to_local().reshape(-1)
                        for one, gradient in zip(self.parameters, gradients, strict=True)
                    ]
                )
            if kept is not None:
                self._add(kept, None)
        self._drop()

    def observed(self) -> Iterator[tuple[torch.nn.Parameter, bytes]]:
        """Yield each parameter and the bytes of its gradient, after a micro-batch to which all ranks give weight 0."""
        if self._contributions is not None:
            rows = in_numpy(self._contributions).reshape(len(self._shards.words), -1)
            for one, (begin, length) in zip(self.parameters, self._places(), strict=True):
                yield one.sharded_param, rows[:, begin : begin + length].tobytes()

    def write(self, words: int, used: list[bool]) -> None:
        """Set ``.grad`` of this rank's parts to the mean over all ranks.

        Args:
            words: The sum of all weights, in units of 2**-64.
            used: For each parameter, whether any micro-batch of any rank has used it.

        """
        if not any(used):
            return
        if self._partial is None:
            raise AssertionError(self._name)
        partial = self._partial.on_host() if isinstance(self._partial, DeviceSum) else self._partial
        mean = finish_between(partial, words, self._replicas)
        backend = backend_of(torch.empty(0))
        if backend is None:
            raise AssertionError
        flat = backend.from_host(mean, "cpu:0").to(self._param_group.device)
        for one, (begin, _), is_used in zip(self.parameters, self._places(), used, strict=True):
            part = flat.as_strided(one.sharded_size, one.contiguous_sharded_stride, begin)
            one.sharded_param.grad = one.to_sharded_dtensor(part) if is_used else None

    def _add(self, contributions: torch.Tensor, group: Any) -> None:
        """Add this rank's contributions to the partial sums of all ranks; all ranks that hold parts call.

        Args:
            contributions: Flat, 1-d: the contribution to rank 0's part, then to rank 1's, and so on.
            group: FSDP's process group of these ranks; None if this rank holds all parts.

        Raises:
            ArgumentError: This is the second backward pass of the micro-batch.

        """
        self._passes += 1
        if self._passes > 1:
            raise ArgumentError(
                f"{self._name} ran backward twice in one micro-batch, and two gradients that are added exactly differ "
                "from those of an uncut module. Call it, and backward(), once; make a micro-batch of each call."
            )
        if not any(self._shards.words):  # nothing to add; ``observed`` reads them in ``MicroBatches.check``
            self._contributions = contributions
            return
        words, name = self._shards.words, str(self._dtype).removeprefix("torch.")
        if self._partial is None:
            length = len(contributions) // len(words)
            on_device = DeviceSum.takes(contributions, self._dtype)
            self._partial = DeviceSum(name, length, contributions.device) if on_device else PartialSum(name, length)
        if isinstance(self._partial, DeviceSum):
            self._partial.add_scattered(contributions, words, group)
        else:
            add_scattered(self._partial, in_numpy(contributions), words, self._shards.group)

    def _places(self) -> Iterator[tuple[int, int]]:
        """Yield where each parameter begins in this rank's flat part, and its length there, padding included."""
        begin, ranks = 0, len(self._shards.words)
        for one in self.parameters:
            size = one._orig_size  # noqa: SLF001
            length = math.prod(size) // ranks
            if one.fsdp_placement.dim == 0:
                length = -(-size[0] // ranks) * math.prod(size[1:])
            yield begin, length
            begin += length

    def _watch(self) -> None:
        """Register hooks that note which parameters get a gradient: FSDP sends zeros for the others.

        FSDP makes unsharded parameters in the first forward pass, so hooks are added after it, once for each.
        """
        for at, one in enumerate(self.parameters[self._watched :], self._watched):
            one.unsharded_param.register_post_accumulate_grad_hook(lambda _, at=at: self._note(at))
            self._watched += 1

    def _note(self, at: int) -> None:
        self.used[at] = True


def sharded_modules(model: torch.nn.Module) -> Iterator[tuple[str, FSDPModule, Any]]:
    """Yield the name, the module and the ``FSDPParamGroup`` of each module that FSDP2 cuts.

    Raises:
        ArgumentError: A module has parameters on several meshes, or is cut by the first FSDP.
        FrameworkError: A module is cut, and PyTorch is too old.

    """
    if not distributed.is_available():
        return
    from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel  # noqa: PLC0415 - needs process groups

    for name, module in model.named_modules():
        if isinstance(module, FullyShardedDataParallel):
            raise ArgumentError(
                f"{name or 'The model'} is a FullyShardedDataParallel, the first FSDP, whose gradients cannot be "
                "taken before they are summed. Use torch.distributed.fsdp.fully_shard."
            )
        if isinstance(module, FSDPModule):
            if not hasattr(module, "set_reduce_scatter_unused_params"):
                raise FrameworkError.missing("MicroBatches with FSDP2", "PyTorch", "torch", "2.13")
            groups = module._get_fsdp_state()._fsdp_param_groups  # noqa: SLF001
            if len(groups) > 1:
                raise ArgumentError(
                    f"{name or 'The model'} has parameters on {len(groups)} meshes, and MicroBatches takes one for "
                    "each module. Leave out shard_placement_fn's meshes."
                )
            for group in groups:
                yield name or "the model", module, group


def _check(name: str, param_group: Any, dtype: torch.dtype) -> None:
    """Refuse settings by which FSDP divides gradients, or rounds them before they are added.

    Raises:
        ArgumentError: The module has such settings. The error names the setting.

    """
    if param_group.gradient_divide_factor not in {None, 1.0}:
        raise ArgumentError(
            f"{name} has set_gradient_divide_factor({param_group.gradient_divide_factor:g}). MicroBatches makes the "
            "mean over all micro-batches itself; leave the factor out, and give micro_batch() weights."
        )
    policy = param_group.mp_policy
    computed = policy.param_dtype or dtype
    if torch.promote_types(computed, dtype) != dtype:
        raise ArgumentError(
            f"{name} has MixedPrecisionPolicy(param_dtype={computed}) and parameters of {dtype}, which do not hold its "
            f"gradients. Leave param_dtype out, or make the parameters of {computed}."
        )
    if policy.reduce_dtype is not None and torch.promote_types(policy.reduce_dtype, computed) != policy.reduce_dtype:
        raise ArgumentError(
            f"{name} has MixedPrecisionPolicy(reduce_dtype={policy.reduce_dtype}), which would round its gradients of "
            f"{computed} before they are added. Leave reduce_dtype out."
        )
