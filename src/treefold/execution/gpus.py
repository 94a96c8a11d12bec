"""Which plans the executors of ``execution/cuda`` run; importing this loads no framework."""

from __future__ import annotations

import os
from collections.abc import Iterable

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
