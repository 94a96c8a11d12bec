"""Reductions on GPUs: many arrays in one launch on one device, and plans as streams of chunks across several."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from treefold.execution.cuda import one_device, several_devices
from treefold.execution.operands import Operand, Results
from treefold.fold import Fold
from treefold.plan import Plan

_UNTOUCHED = (
    "treefold: nothing was written; every tensor holds what it held before the call. Reduce in place (out=), which"
    " takes no memory for results where all replicas are on one GPU, or fewer tensors at a time."
)


def run(plan: Plan, inputs: Sequence[Operand], fold: Fold | None, out: Results | None) -> Results:
    """Return each leaf's result per component; with ``out``, in the tensors given.

    Raises:
        torch.OutOfMemoryError: with a note that nothing was written: memory is taken before that.
        GpuError: a CUDA graph is being captured, and cannot take this.

    """
    try:
        if len(plan.devices) == 1:
            return one_device.run(plan, inputs, fold, out)
        return several_devices.run(plan, inputs, fold, out)
    except torch.OutOfMemoryError as error:
        error.add_note(_UNTOUCHED)
        raise
