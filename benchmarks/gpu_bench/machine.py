"""The machine under measurement, behind a seam: its clocks, its copies, its memory.

Work of a GPU alone is timed by the GPU's own clock, between two events around a run of calls. Work in which the host
takes part is timed by the host's clock. Tests use host memory in place of the GPU.
"""

from __future__ import annotations

import abc
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from treefold.bench.clock import Runner, clocked
from treefold.errors import BenchError
from treefold.execution.cuda.prober import driver_version
from treefold.execution.host import describe_machine

#: Two tensors of one size, source and target.
Pair = tuple[Any, Any]
Call = Callable[[], object]


class Machine(abc.ABC):
    """One GPU, the host beside it, and any other GPUs.

    ``gpus`` and ``host``: treefold's names. ``places``: PyTorch's names of the GPUs.
    """

    gpus: Sequence[str]
    host: str
    places: Sequence[str]

    @abc.abstractmethod
    def facts(self) -> dict[str, str]:
        """Return facts about the machine, for the page."""

    @abc.abstractmethod
    def on_gpu(self, call: Call) -> Runner:
        """Return a runner that returns the seconds per call of a run of calls on the first GPU."""

    @abc.abstractmethod
    def synchronize(self) -> None:
        """Wait until every GPU is idle."""

    @abc.abstractmethod
    def pinned(self, tensor: Any) -> Any:
        """Return a tensor in host memory that GPUs can read."""

    @abc.abstractmethod
    def both_ways(self, up: Pair, down: Pair) -> Call:
        """Return a call that starts two copies at once: from the host to a GPU, and from a GPU to the host."""

    @abc.abstractmethod
    def baselines(self, tensors: Sequence[Any]) -> dict[str, Call]:
        """Return other functions that all-reduce tensors on different GPUs, one each, in place."""

    def to_the_end(self, call: Call) -> Runner:
        """Return a runner that returns the host's seconds of each call, until every GPU is idle."""

        def finished() -> None:
            call()
            self.synchronize()

        runner = clocked(finished)

        def run(calls: int) -> Sequence[float]:
            self.synchronize()
            return runner(calls)

        return run

    def enqueued(self, call: Call) -> Runner:
        """Return a runner that returns the host's seconds of each call, until the call returns."""
        runner = clocked(call)

        def run(calls: int) -> Sequence[float]:
            self.synchronize()
            return runner(calls)

        return run


class CudaMachine(Machine):
    """The machine that PyTorch reports; a ROCm build reports its GPUs in the same form."""

    host = "cpu:0"

    def __init__(self) -> None:
        """Find the GPUs.

        Raises:
            BenchError: there are none.

        """
        if not torch.cuda.is_available():
            raise BenchError(
                f"PyTorch {torch.__version__} reports no GPU, so there is nothing to measure. Run this where there are "
                "a GPU, its driver and PyTorch's build for it (python -m pip install --upgrade torch)."
            )
        self.places = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
        self.gpus = [f"gpu:{index}" for index in range(torch.cuda.device_count())]
        torch.cuda.set_device(0)

    def facts(self) -> dict[str, str]:
        """Return GPUs, driver and runtime beside the host."""
        found = [torch.cuda.get_device_properties(index) for index in range(len(self.gpus))]
        words = [f"{gpu.name}, {gpu.total_memory / 1e9:.0f} GB" for gpu in found]
        runtime = f"CUDA {torch.version.cuda}" if torch.version.cuda else f"ROCm {torch.version.hip}"
        return {"GPUs": "; ".join(words), "driver": _driver(), "runtime": runtime} | describe_machine()

    def on_gpu(self, call: Call) -> Runner:
        """Time a run of calls between two events. If the host is too slow, the time includes the GPU's waiting."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

        def run(calls: int) -> Sequence[float]:
            self.synchronize()
            begin.record()
            for _ in range(calls):
                call()
            end.record()
            end.synchronize()
            return [begin.elapsed_time(end) / 1000 / calls]

        return run

    def synchronize(self) -> None:
        """Wait for all GPUs."""
        for place in self.places:
            torch.cuda.synchronize(place)

    def pinned(self, tensor: Any) -> Any:
        """Return a pinned copy."""
        return tensor.pin_memory()

    def both_ways(self, up: Pair, down: Pair) -> Call:
        """Use a stream for each direction."""
        streams = [torch.cuda.Stream(self.places[0]) for _ in range(2)]

        def copy() -> None:
            for stream, (source, target) in zip(streams, (up, down), strict=True):
                with torch.cuda.stream(stream):
                    target.copy_(source, non_blocking=True)

        return copy

    def baselines(self, tensors: Sequence[Any]) -> dict[str, Call]:
        """Return PyTorch's coalesced copies, and NCCL if PyTorch was built with it."""
        comm = importlib.import_module("torch.nn.parallel.comm")

        def reduce_and_broadcast() -> None:
            total = comm.reduce_add(list(tensors), destination=0)
            comm.broadcast(total, out=list(tensors))

        calls: dict[str, Call] = {"torch.cuda.comm": reduce_and_broadcast}
        nccl = importlib.import_module("torch.cuda.nccl")
        if hasattr(torch._C, "_nccl_all_reduce") and nccl.is_available(list(tensors)):  # as it asks itself
            calls["torch.cuda.nccl"] = lambda: nccl.all_reduce(list(tensors))
        return calls


def _driver() -> str:
    """Return the driver's version; without NVML, that of the interface that it offers."""
    version = int(getattr(torch._C, "_cuda_getDriverVersion", int)())  # nothing public says it
    offered = f"for CUDA {version // 1000}.{version % 1000 // 10}" if version else "unknown"
    return driver_version() or offered
