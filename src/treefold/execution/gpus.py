"""The executor that runs plans on GPUs as streams of chunks, or as one kernel. Importing it loads no framework."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence

from treefold.backends import ArrayBackend
from treefold.devices import device_type
from treefold.errors import ArgumentError
from treefold.execution.interface import CallSummary, Executor, Repeat
from treefold.execution.operands import Operand, Results
from treefold.fold import Fold
from treefold.plan import Plan
from treefold.plan.executor_traits import STEP_BY_STEP

#: The environment variable that chooses the executor on GPUs: the framework's operations, or ``CudaExecutor``.
VARIABLE = "TREEFOLD_GPU_EXECUTOR"

_UNTOUCHED = (
    "treefold: nothing was written; every tensor holds what it held before the call. Reduce in place (out=), which"
    " takes no memory for results where all replicas are on one GPU, or fewer tensors at a time."
)


class CudaExecutor(Executor):
    """PyTorch's tensors on GPUs: a kernel where all are on one, streams of chunks where they are on several."""

    name = "cuda"
    most_devices_in_one_pass = 1
    manner = "chunks of all steps in flight together"

    def refusal(self, call: CallSummary) -> str:
        """Refuse what is not PyTorch's or not on a GPU, and what ``TREEFOLD_GPU_EXECUTOR`` leaves to another.

        Raises:
            ArgumentError: it asks for something else.

        """
        if set(call.frameworks) != {"PyTorch"}:
            return "it runs on PyTorch's tensors only"
        kinds = {device_type(device) for device in call.devices}
        if "gpu" not in kinds or not kinds <= {"gpu", "cpu"}:
            return "it runs on GPUs, and the host beside them"
        if len(call.devices) > 1 and call.accumulate == "callback":
            return "its streams call no accumulation_fn"
        return "" if gpu_executor(call.devices) == self.name else f"{VARIABLE} does not ask for it"

    def run(self, plan: Plan, inputs: Sequence[Operand], fold: Fold | None, out: Results | None) -> Results:
        """Run it by PyTorch's streams and Triton's kernels.

        Raises:
            torch.OutOfMemoryError: with a note that nothing was written: memory is allocated before that.
            GpuError: a CUDA graph is being captured, and cannot take this.

        """
        import torch  # noqa: PLC0415 - as the next line

        from treefold.execution.cuda import one_device, several_devices  # noqa: PLC0415 - it is loaded: these are its tensors

        try:
            if len(plan.devices) == 1:
                return one_device.run(plan, inputs, fold, out)
            return several_devices.run(plan, inputs, fold, out)
        except torch.OutOfMemoryError as error:
            error.add_note(_UNTOUCHED)
            raise

    def repeater(self, plan: Plan, fold: Fold, backends: Sequence[ArrayBackend]) -> Repeat | None:  # noqa: ARG002 - all PyTorch's
        """Repeat what one launch of the kernel did."""
        from treefold.execution.cuda.repeat import repeater  # noqa: PLC0415 - imports PyTorch

        return repeater(plan, fold, lambda: gpu_executor(plan.devices) == self.name)


#: The values of the variable.
CHOICES = (CudaExecutor.name, STEP_BY_STEP)


def gpu_executor(devices: Collection[str] = ()) -> str:
    """Return what runs plans between these devices: what ``TREEFOLD_GPU_EXECUTOR`` asks for.

    If it is not set, ``"cuda"`` with one GPU, and ``"local"`` with several: between those, ``"cuda"`` has never run.

    Raises:
        ArgumentError: it is set to something else.

    """
    num_gpus = sum(device_type(device) == "gpu" for device in set(devices))
    asked = os.environ.get(VARIABLE, CudaExecutor.name if num_gpus < 2 else STEP_BY_STEP)  # noqa: PLR2004
    if asked not in CHOICES:
        raise ArgumentError.setting(asked, '"local" or "cuda"', name=VARIABLE)
    return asked
