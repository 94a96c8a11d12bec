"""Runs a plan in a graph of TensorFlow that is being traced: the kernels of host memory fold when the graph runs."""

from __future__ import annotations

from collections.abc import Sequence

from treefold.devices import device_type
from treefold.execution import native
from treefold.execution.interface import CallSummary, Executor, Operand, Results
from treefold.fold import Fold
from treefold.plan import Plan


class GraphExecutor(Executor):
    """Runs plans in TensorFlow's graphs on CPU devices: the bits of the eager call, from the same kernels."""

    name = "graph"

    @property
    def kernel(self) -> str:
        """The kernel of host memory."""
        return native.kernel()

    def refusal(self, call: CallSummary) -> str:
        """Refuse all but TensorFlow's symbolic tensors, on CPUs, in graphs for neither XLA nor export."""
        if set(call.frameworks) != {"TensorFlow"} or call.is_in_host_memory:
            return "it runs on TensorFlow's symbolic tensors only"
        if call.accumulate == "callback":
            return "an accumulation_fn is traced with its graph"
        from treefold.backends.tensorflow_calls import is_traced_on_host  # noqa: PLC0415 - TensorFlow is loaded

        is_on_host = is_traced_on_host() and all(device_type(device) == "cpu" for device in call.devices)
        return "" if is_on_host else "its graph does not run in host memory, by kernels"

    def run(self, plan: Plan, inputs: Sequence[Operand], fold: Fold | None, out: Results | None) -> Results:
        """Return each leaf's result per component, as symbolic tensors; these cannot be written into."""
        from treefold.execution.tensorflow_graphs import reduced  # noqa: PLC0415 - TensorFlow is loaded: these are its tensors

        if out is not None:
            raise AssertionError(out)  # validation has refused it
        return reduced(plan, inputs, fold)
