"""Clipping gradients by their exact norm, which does not depend on how a model is cut."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import distributed

from treefold.backends import backend_of
from treefold.backends.tracing import untraced
from treefold.errors import ArgumentError, CallMismatchError, NotFiniteError, TreefoldError
from treefold.errors.words import short
from treefold.exact import RankAdder, RankSum, rank_sum
from treefold.exact.scalar_sum import ScalarSum
from treefold.group import Group

#: Returns the sum of squares of this process, or of some ranks together.
_Read = Callable[[], RankSum]
_NORM_TYPE = 2.0
#: torch adds this to the norm before it divides by it.
_ABOVE_ZERO = 1e-6


@untraced
def clip_grad_norm_(
    parameters: torch.Tensor | Iterable[torch.Tensor],
    max_norm: float,
    norm_type: float = _NORM_TYPE,
    error_if_nonfinite: bool = False,  # noqa: FBT001, FBT002 - torch's signature
    foreach: bool | None = None,  # noqa: FBT001 - as above
    *,
    group: Any = None,
) -> torch.Tensor:
    """Scale gradients in place so that their norm is at most ``max_norm``; return the norm before.

    The norm is the square root of the exact sum of all squares, correctly rounded. The squares of a ``DTensor`` are
    added over its mesh, replicated parts once.

    Source: ``torch.nn.utils.clip_grad_norm_``.

    Args:
        parameters: A tensor, or tensors; those without ``.grad`` are skipped.
        max_norm: The largest norm that is left as it is.
        norm_type: 2; others are refused.
        error_if_nonfinite: Whether a norm that is not finite is an error; the gradients then stay as they were.
        foreach: None or True: scale all gradients in one call; False: one by one.
        group: Ranks that hold disjoint parts of one model, a ``Group`` or a PyTorch ``ProcessGroup``. All of them call
            this, and get the same norm. With ``DTensor``, ranks that hold other parameters. None: this process, and the
            meshes.

    Returns:
        The norm as a 0-d tensor: of float64 if a gradient is float64, else of float32.

    Raises:
        TreefoldError: A subclass from ``treefold.errors``, on all ranks; ``NotFiniteError`` with
            ``error_if_nonfinite``.

    >>> import torch
    >>> weight = torch.zeros(2)
    >>> weight.grad = torch.tensor([3.0, 4.0])
    >>> clip_grad_norm_(weight, 1.0), weight.grad
    (tensor(5.), tensor([0.6000, 0.8000]))
    """
    if norm_type != _NORM_TYPE:
        raise ArgumentError(
            f"clip_grad_norm_ got norm_type={short(norm_type)}. It takes 2, the only norm that is a sum of squares; "
            "torch.nn.utils.clip_grad_norm_ has others."
        )
    given = [parameters] if isinstance(parameters, torch.Tensor) else parameters
    gradients = [one.grad for one in given if one.grad is not None]
    with torch.no_grad():
        total = _over(group, functools.partial(_sum_of_squares, gradients)).result()
        if error_if_nonfinite and not total.isfinite():
            raise NotFiniteError(
                f"The norm of the gradients is {float(total)}, so they cannot be scaled to it, and are as they were. "
                "error_if_nonfinite=False scales them all the same."
            )
        factor = float(torch.clamp(float(max_norm) / (total + _ABOVE_ZERO), max=1.0))
        local = [_local(one) for one in gradients]
        if local and foreach is not False:
            torch._foreach_mul_(local, factor)
        else:
            for one in local:
                one.mul_(factor)
    return total


def _sum_of_squares(gradients: Sequence[torch.Tensor]) -> RankSum:
    """Return the exact sum of the squares of this rank's gradients, with all ranks' parts of those that are sharded.

    Raises:
        TreefoldError: Gradients cannot be read, on all ranks of their mesh.

    """
    sharded: dict[Any, list[torch.Tensor]] = {}
    for one in gradients:
        sharded.setdefault(_sharding(one), []).append(_local(one))
    made, failed = [_nothing()], None
    for groups, tensors in sharded.items():
        read = functools.partial(_of_tensors, tensors, failed)
        for group in groups:
            read = functools.partial(_over, group, read)
        try:
            made.append(read())
        except TreefoldError as error:  # the other meshes' ranks wait for this one
            failed = failed or error
    if failed is not None:
        raise failed
    return functools.reduce(_plus, made)


def _of_tensors(tensors: Sequence[torch.Tensor], failed: TreefoldError | None) -> RankSum:
    if failed is not None:
        raise failed
    return rank_sum("norm", [tensors, tensors], None)


def _nothing() -> RankSum:
    """Return the contribution of a rank without gradients."""
    backend = backend_of(torch.empty(0))
    if backend is None:
        raise AssertionError
    return RankSum("norm", "float32", backend, ScalarSum())


def _plus(one: RankSum, other: RankSum) -> RankSum:
    dtype = "float64" if "float64" in {one.dtype, other.dtype} else "float32"
    return one._replace(dtype=dtype, total=one.total.plus(other.total))


def _over(group: Any, read: _Read) -> RankSum:
    """Return the sum over all ranks of a group, or of this process alone if there is no group.

    Raises:
        TreefoldError: A subclass from ``treefold.errors``, on all ranks.

    """
    if group is None:
        return read()
    if isinstance(group, Group):
        return RankAdder(group).add(read)
    if not (distributed.is_available() and isinstance(group, distributed.ProcessGroup)):
        raise ArgumentError(
            f"clip_grad_norm_ got group={short(group)}. It takes what treefold.connect() returns, or a ProcessGroup."
        )
    own: RankSum | TreefoldError
    try:
        own = read()
    except TreefoldError as error:
        own = error
    said: list[Any] = [None] * distributed.get_world_size(group)
    telling = str(own) if isinstance(own, TreefoldError) else (own.dtype, own.total.to_json())
    distributed.all_gather_object(said, telling, group=group)
    if isinstance(own, TreefoldError):
        raise own
    for rank, one in enumerate(said):
        if isinstance(one, str):
            raise CallMismatchError.refused(rank, one)
    return functools.reduce(_plus, [own._replace(dtype=one, total=ScalarSum.from_json(sent)) for one, sent in said])


def _local(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.to_local() if _is_distributed(gradient) else gradient


def _is_distributed(gradient: torch.Tensor) -> bool:
    module = sys.modules.get("torch.distributed.tensor")  # not imported to find out
    return module is not None and isinstance(gradient, module.DTensor)


def _sharding(gradient: Any) -> tuple[Any, ...]:
    """Return the process groups over which a gradient is sharded, by dimension of its mesh; none for a plain tensor.

    Raises:
        ArgumentError: Its sum is still to be made.

    """
    if not _is_distributed(gradient):
        return ()
    placements = gradient.placements
    if any(one.is_partial() for one in placements):
        raise ArgumentError(
            "A gradient is a DTensor with a Partial placement, so its sum is still to be made. Call "
            "grad.redistribute() first."
        )
    mesh = gradient.device_mesh
    return tuple(mesh.get_group(at) for at, one in enumerate(placements) if not one.is_replicate())
