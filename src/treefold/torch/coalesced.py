"""Lists of tensors, reduced in place, or summed and copied to devices as ``torch.nn.DataParallel`` does.

Except for ``all_reduce_``, names and positional arguments are those of ``torch.cuda.comm``, so only the import changes.
In addition, tensors may lie on any devices, the CPU among them, any op is allowed, and the result may go to every
device.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, TypeVar

import torch

from treefold.backends import backend_of
from treefold.backends.tracing import untraced
from treefold.devices import device_type
from treefold.errors import ArgumentError
from treefold.errors.words import short
from treefold.ops import HierarchicalCopyAllReduce, ReductionToOneDevice, all_reduce
from treefold.ops.short_forms import check_op, per_replica
from treefold.options import CommunicationOptions
from treefold.reduce_op import ReduceOpLike
from treefold.values import PerReplica, Weights

#: torch.cuda.comm's own default: 10 MiB.
_BUFFER_SIZE = 10 * 2**20

# Shared by all callers: between calls they keep nothing but plans.
_TO_ALL = HierarchicalCopyAllReduce(num_packs=0)
_TO_ONE = ReductionToOneDevice()


@untraced
def reduce_add_coalesced(
    inputs: Iterable[Iterable[torch.Tensor]],
    destination: Any = None,
    buffer_size: int = _BUFFER_SIZE,
    *,
    op: ReduceOpLike = "sum",
    weights: Weights | None = None,
) -> tuple[torch.Tensor, ...]:
    """Return the sum of each group of tensors, one from every device, on one device.

    The first tensors of all devices are summed, the second, and so on.

    Source: ``torch.cuda.comm.reduce_add_coalesced``, which sums CUDA tensors only.

    Args:
        inputs: The tensors of each device, all in the same order, of the same shapes and dtypes.
        destination: A device as PyTorch spells it, or a CUDA index. None: the current CUDA device, or the CPU if no
            input is on a GPU.
        buffer_size: The bytes of tensors that travel together; 0: each by itself.
        op: A ``ReduceOp`` or its name.
        weights: One number per device, for MEAN only; None: all weigh the same.

    Returns:
        One tensor per group.

    Raises:
        TreefoldError: A subclass from ``treefold.errors``; see ``treefold.CrossDeviceOps.reduce``.

    >>> import torch
    >>> reduce_add_coalesced([[torch.ones(2), torch.zeros(1)], [torch.ones(2), torch.ones(1)]])
    (tensor([2., 2.]), tensor([1.]))
    """
    value = _per_replica(inputs, "inputs")
    if destination is None:
        on_gpu = any(device_type(device) == "gpu" for device in value.devices)
        destination = torch.device("cuda") if on_gpu else torch.device("cpu")
    options = CommunicationOptions(bytes_per_pack=buffer_size)
    return tuple(_TO_ONE.reduce(op, value, _device_name(destination, 0), options, weights=weights)[0])


@untraced
def all_reduce_coalesced(
    inputs: Iterable[Iterable[torch.Tensor]],
    buffer_size: int = _BUFFER_SIZE,
    *,
    op: ReduceOpLike = "sum",
    weights: Weights | None = None,
) -> list[tuple[torch.Tensor, ...]]:
    """Return the sum of each group of tensors, one from every device, on every device.

    Args:
        inputs: The tensors of each device, all in the same order, of the same shapes and dtypes.
        buffer_size: The bytes of tensors that travel together; 0: each by itself.
        op: A ``ReduceOp`` or its name.
        weights: One number per device, for MEAN only; None: all weigh the same.

    Returns:
        For each input, in order, a tuple with one tensor per group, on its device.

    Raises:
        TreefoldError: A subclass from ``treefold.errors``; see ``treefold.CrossDeviceOps.reduce``.

    >>> import torch
    >>> all_reduce_coalesced([[torch.ones(1)], [torch.full((1,), 2.0)]], op="mean")
    [(tensor([1.5000]),), (tensor([1.5000]),)]
    """
    value = _per_replica(inputs, "inputs")
    options = CommunicationOptions(bytes_per_pack=buffer_size)
    return [tuple(component) for component in _TO_ALL.reduce(op, value, value, options, weights=weights)]


@untraced
def broadcast_coalesced(
    tensors: Iterable[torch.Tensor], devices: Iterable[Any], buffer_size: int = _BUFFER_SIZE
) -> list[tuple[torch.Tensor, ...]]:
    """Return copies of ``tensors`` on each device.

    Unlike in ``torch.cuda.comm``, the tensors may lie on any device, and the first entry has copies, too, not the
    tensors themselves. Copies carry no gradients.

    Source: ``torch.cuda.comm.broadcast_coalesced``.

    Args:
        tensors: The tensors, on any devices.
        devices: Devices as PyTorch spells them, or CUDA indices.
        buffer_size: Checked only: no buffer is needed.

    Returns:
        A tuple of copies for each device, in order.

    Raises:
        TreefoldError: A subclass from ``treefold.errors``; see ``treefold.CrossDeviceOps.broadcast``.

    >>> import torch
    >>> broadcast_coalesced([torch.arange(2)], ["cpu", "cpu"])
    [(tensor([0, 1]),), (tensor([0, 1]),)]
    """
    CommunicationOptions(bytes_per_pack=buffer_size)  # checks it
    names = [_device_name(device, position) for position, device in enumerate(_listed(devices, "devices", "devices"))]
    return [tuple(copies) for copies in _TO_ONE.broadcast(_listed(tensors, "tensors", "tensors"), names)]


def _per_replica(inputs: Iterable[Iterable[torch.Tensor]], what: str) -> PerReplica:
    groups = [] if isinstance(inputs, torch.Tensor) else _listed(inputs, what, "lists of tensors")
    # A tensor is iterable, too, row by row, which is hardly meant.
    if any(isinstance(group, torch.Tensor) for group in (inputs, *groups)):
        raise ArgumentError(f"{what} holds tensors themselves. It takes one list of tensors for each device.")
    if not groups:
        raise ArgumentError.no_replicas(what)
    return PerReplica([_listed(group, what, "tensors") for group in groups])


def _listed(values: object, what: str, of: str) -> list[Any]:
    """Return an ordered iterable as a list; generators are accepted, as in ``torch.cuda.comm``.

    Raises:
        ArgumentError: It has no order, or is an array, which would give its rows.

    """
    is_unordered = isinstance(values, Mapping | AbstractSet | str | bytes)
    if is_unordered or not isinstance(values, Iterable) or backend_of(values) is not None:
        raise ArgumentError(f"{what} has {short(values)} where a list of {of} is meant. Pass a list or tuple.")
    return list(values)


def _device_name(device: Any, position: int) -> str:
    """Return treefold's name of a device as PyTorch spells it; the CPU without an index is ``cpu:position``."""
    if isinstance(device, bool) or not isinstance(device, int | str | torch.device):
        raise ArgumentError.torch_device(device)
    if isinstance(device, int):
        if abs(device) > sys.maxsize:
            raise ArgumentError.torch_device(device)
        return f"gpu:{device}"
    kind, _, index = str(device).partition(":")
    if kind == "cpu":
        return f"cpu:{index or position}"
    if kind == "cuda" and not index:
        return f"gpu:{torch.cuda.current_device()}" if torch.cuda.is_available() else "gpu:0"
    return str(device)


_Tensors = TypeVar("_Tensors", bound=Sequence[Any])


@untraced
def all_reduce_(tensors: _Tensors, op: ReduceOpLike = "sum", *, weights: Weights | None = None) -> _Tensors:
    """Reduce tensors, one per replica, into themselves, and return them.

    Nothing is allocated. Leaves that require gradients, such as parameters, are written under ``torch.no_grad()`` only.
    A backward pass that still needs the old contents raises PyTorch's error.

    Args:
        tensors: A list or tuple of tensors of one shape and dtype, or of pytrees of them, such as each replica's list
            of gradients.
        op: A ``ReduceOp`` or its name.
        weights: One number per replica, for MEAN only; None: all weigh the same.

    Returns:
        ``tensors`` itself.

    Raises:
        TreefoldError: A subclass from ``treefold.errors``, before anything is written; see
            ``treefold.CrossDeviceOps.reduce``.

    >>> import torch
    >>> grads = [torch.tensor([1.0, 2.0]), torch.tensor([3.0, 6.0])]
    >>> all_reduce_(grads, "mean")[1]
    tensor([2., 4.])
    """
    check_op(op, "all_reduce_")
    replicas = per_replica(tensors, "tensors")
    all_reduce(replicas, op, out=replicas, weights=weights)
    return tensors
