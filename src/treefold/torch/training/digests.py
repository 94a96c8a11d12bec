"""SHA-256 of the tensors of a training run: gradients, parameters, buffers, and the state of the optimizer."""

from __future__ import annotations

import hashlib
import itertools
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from treefold.errors import ArgumentError

#: Prefixes that wrappers insert into the names of parameters.
_WRAPPERS = re.compile(r"(?:^|(?<=\.))(?:_orig_mod|_checkpoint_wrapped_module|_fsdp_wrapped_module)\.")


def names(model: torch.nn.Module) -> dict[torch.nn.Parameter, str]:
    """Return the name of each parameter, without the prefixes of wrappers."""
    return {parameter: plain_name(name, model) for name, parameter in model.named_parameters()}


def plain_name(name: str, model: torch.nn.Module) -> str:
    """Return the name of a parameter, buffer or module without the prefixes of wrappers."""
    if isinstance(model, torch.nn.parallel.DistributedDataParallel):
        name = name.removeprefix("module.")
    return _WRAPPERS.sub("", name)


def digests(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer | None, logged: Mapping[str, float], *, is_state: bool
) -> dict[str, str]:
    """Return the SHA-256 of each tensor or value of a run, by name; all ranks call, because cut tensors are gathered.

    Args:
        model: The model.
        optimizer: Its optimizer; None leaves out the optimizer's state.
        logged: Numbers, by name.
        is_state: Whether to leave out logged numbers and gradients, which belong to one step.

    Raises:
        ArgumentError: The optimizer has a parameter that the model lacks.

    """
    parameters = names(model)
    buffers = ((f"buffer {plain_name(name, model)}", one) for name, one in model.named_buffers())
    made: Iterator[tuple[str, Any]] = itertools.chain(
        ((f"parameter {name}", one) for one, name in parameters.items()), buffers, _of_optimizer(optimizer, parameters)
    )
    if not is_state:
        numbers = ((f"logged {name}", torch.tensor(one, dtype=torch.float64)) for name, one in sorted(logged.items()))
        gradients = ((f"gradient {name}", one.grad) for one, name in parameters.items() if one.grad is not None)
        made = itertools.chain(numbers, gradients, made)
    return {name: _of_value(one) for name, one in made}


def together(found: Mapping[str, str]) -> str:
    """Return one SHA-256 over digests and their names, in order of the names."""
    return digest(repr(sorted(found.items())).encode())


def layout_problem(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None) -> str | None:
    """Return a sentence on why the optimizer's bits depend on how FSDP2 cuts parameters; None if they do not."""
    cut = {one: name for one, name in names(model).items() if _is_cut(one)}
    if not cut:
        return None
    for group in [] if optimizer is None else optimizer.param_groups:
        if group.get("fused"):
            kind = type(optimizer).__name__
            return (
                f"{kind}(fused=True) rounds elements differently by their place in a slice, so its bits depend on how "
                f"the model is cut. Use {kind}(foreach=True)."
            )
    for one, name in cut.items():
        if one.dtype in {torch.bfloat16, torch.float16}:
            return (
                f"{name} is a parameter of {one.dtype}, on which optimizers round elements differently by their place "
                "in a slice, so its bits depend on how the model is cut. Keep parameters in float32, and compute in "
                "16 bits by torch.autocast or MixedPrecisionPolicy."
            )
    return None


def _of_optimizer(
    optimizer: torch.optim.Optimizer | None, parameters: Mapping[torch.Tensor, str]
) -> Iterator[tuple[str, Any]]:
    """Yield each entry of the optimizer's state, under the name of its parameter."""
    for one in [] if optimizer is None else (one for group in optimizer.param_groups for one in group["params"]):
        if one not in parameters:
            raise ArgumentError(
                "The optimizer has a parameter that is none of the model's. Make it of model.parameters(), after the "
                "model is cut or wrapped."
            )
        for key, value in sorted(optimizer.state.get(one, {}).items()):  # type: ignore[union-attr]
            yield f"optimizer {parameters[one]} {key}", value


def digest(contents: bytes) -> str:
    """Return the SHA-256 of some bytes."""
    return hashlib.sha256(contents).hexdigest()


def _of_value(value: Any) -> str:
    """Return the SHA-256 of a whole tensor with its dtype and shape, or of another value's ``repr``."""
    if not isinstance(value, torch.Tensor):
        return digest(repr(value).encode())
    whole = value.detach().full_tensor() if _is_distributed(value) else value.detach()
    flat = whole.cpu().contiguous().reshape(-1)
    described = f"{whole.dtype} {tuple(whole.shape)}".encode()
    return digest(described + flat.view(torch.uint8).numpy().tobytes())


def _is_distributed(value: torch.Tensor) -> bool:
    module = sys.modules.get("torch.distributed.tensor")  # do not import it for this question
    return module is not None and isinstance(value, module.DTensor)


def _is_cut(value: Any) -> bool:
    """Return whether a tensor is a DTensor of which each rank holds a part only."""
    return _is_distributed(value) and any(not one.is_replicate() for one in value.placements)
