"""Which plans the executors of ``execution/cuda`` run; importing this loads no framework."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence

from treefold.devices import device_type
from treefold.errors import ArgumentError

#: What runs plans on GPUs: ``local`` (the framework's own operations, step by step) or ``cuda``.
VARIABLE = "TREEFOLD_GPU_EXECUTOR"
_CHOICES = ("local", "cuda")


def gpu_executor() -> str:
    """Return what ``TREEFOLD_GPU_EXECUTOR`` asks for; ``"local"`` if it is not set.

    ``"cuda"`` is not the automatic choice before it has been run on every kind of machine that it is for.

    Raises:
        ArgumentError: it is set to something else.

    """
    asked = os.environ.get(VARIABLE, "local")
    if asked not in _CHOICES:
        raise ArgumentError.setting(asked, '"local" (the default) or "cuda"', name=VARIABLE)
    return asked


def runs_on_gpus(frameworks: Iterable[str], devices: Iterable[str], accumulate: str) -> bool:
    """Tell whether a plan is for the ``cuda`` executor: PyTorch's tensors, a GPU among the devices, and asked for."""
    kinds = {device: device_type(device) for device in devices}
    is_one_device = len(kinds) == 1
    return (
        set(frameworks) == {"PyTorch"}
        and "gpu" in kinds.values()
        and set(kinds.values()) <= {"gpu", "cpu"}
        and (is_one_device or accumulate != "callback")
        and gpu_executor() == "cuda"
    )


def nccl_refusal(devices: Sequence[str]) -> str:
    """Return why NCCL cannot all-reduce one value per device between these, in words; empty if it can."""
    if any(device_type(device) != "gpu" for device in devices):
        return "NCCL reduces between GPUs only"
    if len(set(devices)) < len(devices):
        return "NCCL takes one replica per GPU"
    if len(devices) < 2:  # noqa: PLR2004
        return "there is one GPU only"
    torch = sys.modules.get("torch")
    if torch is None:
        return "NCCL comes with PyTorch, which is not loaded"
    return "" if hasattr(torch._C, "_nccl_all_reduce") else "this build of PyTorch has no NCCL"  # noqa: SLF001 - asked so by torch.cuda.nccl
