"""The executors of GPUs: streams of chunks, or one kernel; and NCCL. Importing them loads no framework."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Sequence

from treefold.backends import ArrayBackend
from treefold.devices import device_type
from treefold.errors import ArgumentError
from treefold.execution.interface import CallSummary, Executor, Operand, Repeat, Results
from treefold.fold import Fold
from treefold.options import CommunicationImplementation
from treefold.plan import Plan
from treefold.plan.plan import STEP_BY_STEP

#: The environment variable that chooses the executor on GPUs: the framework's operations, or ``CudaExecutor``.
VARIABLE = "TREEFOLD_GPU_EXECUTOR"

_UNTOUCHED = (
    "treefold: nothing was written; every tensor holds what it held before the call. Reduce in place (out=), which"
    " takes no memory for results where all replicas are on one GPU, or fewer tensors at a time."
)


_BY_THE_HOST = "weights whose sum has more than 28 bits: contributions are copied to the host, and folded there"


class CudaExecutor(Executor):
    """PyTorch's tensors on GPUs: a kernel where all are on one, streams of chunks where they are on several."""

    name = "cuda"

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

    def is_exact(self, call: CallSummary) -> bool:
        """Between replicas on one GPU and its host, by Triton's kernels."""
        from treefold.execution.cuda import one_device  # noqa: PLC0415 - PyTorch is loaded: these are its tensors

        return _num_gpus(call.devices) == 1 and one_device.has_triton()

    def note(self, call: CallSummary, fold: Fold) -> str:
        """Return that the host folds, where it does."""
        from treefold.execution.cuda.one_device import WEIGHT_BITS  # noqa: PLC0415 - as above

        is_long = (fold.divisor or 0).bit_length() > WEIGHT_BITS
        return _BY_THE_HOST if is_long and call.accumulate == "exact" and self.is_exact(call) else ""

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
        from treefold.execution.cuda.one_device import repeater  # noqa: PLC0415 - imports PyTorch

        return repeater(plan, fold, lambda: gpu_executor(plan.devices) == self.name)


#: The values of the variable.
CHOICES = (CudaExecutor.name, STEP_BY_STEP)


def gpu_executor(devices: Collection[str] = ()) -> str:
    """Return what runs plans between these devices: what ``TREEFOLD_GPU_EXECUTOR`` asks for.

    If it is not set, ``"cuda"`` with one GPU, and ``"local"`` with several: between those, ``"cuda"`` has never run.

    Raises:
        ArgumentError: it is set to something else.

    """
    asked = os.environ.get(VARIABLE, CudaExecutor.name if _num_gpus(devices) < 2 else STEP_BY_STEP)  # noqa: PLR2004
    if asked not in CHOICES:
        raise ArgumentError.setting(asked, '"local" or "cuda"', name=VARIABLE)
    return asked


def _num_gpus(devices: Collection[str]) -> int:
    return sum(device_type(device) == "gpu" for device in set(devices))


class NcclExecutor(Executor):
    """NCCL, between PyTorch's tensors on different GPUs of this process."""

    name = "nccl"
    is_on_request = True
    honours_timeout = True
    implementations = frozenset({CommunicationImplementation.AUTO, CommunicationImplementation.NCCL})
    reduces_packs = True

    def refusal(self, call: CallSummary) -> str:
        """Refuse calls that NCCL cannot all-reduce, or that PyTorch cannot pass to it."""
        if not call.routes:
            return "there is nothing to reduce"
        for sources, destinations in call.routes:
            refusal = nccl_refusal(sources)
            if refusal:
                return refusal
            if set(sources) != set(destinations):
                return "NCCL leaves results where the values are, and other destinations are asked for"
        others = [framework for framework in call.frameworks if framework != "PyTorch"]
        return f"treefold runs it through PyTorch, and these are {others[0]} arrays" if others else ""

    def run(self, plan: Plan, inputs: Sequence[Operand], fold: Fold | None, out: Results | None) -> Results:
        """Run it through PyTorch."""
        return self.run_within(None, plan, inputs, fold, out)

    def run_within(
        self, timeout_s: float | None, plan: Plan, inputs: Sequence[Operand], fold: Fold | None, out: Results | None
    ) -> Results:
        """Run the plan through PyTorch and wait at most ``timeout_s`` seconds for the end; None sets no limit."""
        from treefold.execution.cuda import nccl  # noqa: PLC0415 - imports PyTorch

        return nccl.run(plan, inputs, fold, out, timeout_s)


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
