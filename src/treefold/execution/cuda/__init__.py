"""Reductions on GPUs: many arrays in one launch on one device, and plans as streams of chunks across several."""

from __future__ import annotations

from collections.abc import Sequence

from treefold.execution.cuda import one_device, several_devices
from treefold.execution.operands import Operand, Results
from treefold.fold import Fold
from treefold.plan.ir import Plan


def run(plan: Plan, inputs: Sequence[Operand], fold: Fold | None, out: Results | None) -> Results:
    """Return each leaf's result per component; with ``out``, in the tensors given."""
    if len(plan.devices) == 1:
        return one_device.run(plan, inputs, fold, out)
    return several_devices.run(plan, inputs, fold, out)
