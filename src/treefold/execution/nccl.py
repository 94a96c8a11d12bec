"""The executor whose packs NCCL all-reduces, for ops classes that ask for it. Importing it loads no framework."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from treefold.devices import device_type
from treefold.execution.interface import CallSummary, Executor
from treefold.execution.operands import Operand, Results
from treefold.fold import Fold
from treefold.options import CommunicationImplementation
from treefold.plan import Plan


class NcclExecutor(Executor):
    """NCCL, between PyTorch's tensors on different GPUs of this process."""

    name = "nccl"
    own_promise = "the same bits on every destination; on every run, if NCCL chooses the same way"
    manner = "in place of the copies and combinations of a pack, wherever it does the same"
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
