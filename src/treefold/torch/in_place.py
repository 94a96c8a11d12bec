"""Reductions that leave their result in the tensors themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from treefold.backends.torch_untraced import untraced
from treefold.ops import all_reduce
from treefold.ops.short_forms import check_op, per_replica
from treefold.reduce_op import ReduceOpLike
from treefold.values import Weights

_Tensors = TypeVar("_Tensors", bound=Sequence[Any])


@untraced
def all_reduce_(tensors: _Tensors, op: ReduceOpLike = "sum", *, weights: Weights | None = None) -> _Tensors:
    """Reduce tensors, one per replica, into themselves, and return them.

    ``tensors``: a list or tuple of tensors of one shape and dtype, or of pytrees of them, such as each replica's list
    of gradients. Nothing is allocated. Leaves that require gradients, such as parameters, are written under
    ``torch.no_grad()`` only, and a backward pass that still needs what was there raises PyTorch's error. ``weights``:
    one per replica, MEAN only.

    Raises:
        TreefoldError: one of its kinds, before anything is written; see ``treefold.CrossDeviceOps.reduce``.

    >>> import torch
    >>> grads = [torch.tensor([1.0, 2.0]), torch.tensor([3.0, 6.0])]
    >>> all_reduce_(grads, "mean")[1]
    tensor([2., 4.])
    """
    check_op(op, "all_reduce_")
    replicas = per_replica(tensors, "tensors")
    all_reduce(replicas, op, out=replicas, weights=weights)
    return tensors
