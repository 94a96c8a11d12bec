"""The prober of links between GPUs: it copies as ``several_devices`` does, and times the copies."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from treefold.devices import device_type, torch_device

_LOAD_BYTES = 16 << 20


class CudaProber:
    """The links of all GPUs that PyTorch reports, and of ``cpu:0``, with pinned memory where possible."""

    def machine(self) -> str:
        """Return a line that names the machine of the results: GPUs, their UUIDs, and versions of driver and CUDA."""
        count = torch.cuda.device_count()
        gpus = [torch.cuda.get_device_properties(index) for index in range(count)]
        names = [f"{gpu.name} {getattr(gpu, 'uuid', '')}" for gpu in gpus]
        return "; ".join([*names, f"driver {driver_version()}", f"CUDA {torch.version.cuda or torch.version.hip}"])

    def devices(self) -> Sequence[str]:
        """Return the devices with links to prove: all GPUs, and then the host; an empty list without a GPU."""
        count = torch.cuda.device_count()
        return [*(f"gpu:{index}" for index in range(count)), "cpu:0"] if count else []

    def put(self, pattern: np.ndarray[Any, np.dtype[np.uint8]], device: str) -> Any:
        """Return a buffer on a device with these bytes; the host sends them."""
        tensor = torch.from_numpy(pattern.copy())
        if device_type(device) == "cpu":
            return _pinned_copy(tensor)
        return tensor.to(torch_device(device))

    def copy(self, source: Any, target: Any) -> None:
        """Copy a buffer to another device, as the executor does, and wait until the copy is done."""
        target.copy_(source, non_blocking=True)
        _synchronize(source, target)

    def seconds_to_copy(self, source: Any, target: Any) -> float:
        """Return the seconds that a copy takes, measured by events on the GPU's clock."""
        gpu = source if source.is_cuda else target
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.device(gpu.device):
            # The GPU's clock leaves out the launch from Python, which takes longer than a small copy.
            begin.record()
            target.copy_(source, non_blocking=True)
            end.record()
        _synchronize(source, target)
        return float(begin.elapsed_time(end)) / 1000

    def get(self, buffer: Any) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Return the bytes of a buffer; its device sends them to the host."""
        bytes_: np.ndarray[Any, np.dtype[np.uint8]] = buffer.cpu().numpy()
        return bytes_

    def load(self, pairs: Sequence[tuple[str, str]]) -> Callable[[], None]:
        """Keep one copy under way between every pair, from a new thread; return a function that ends the copies."""
        done = threading.Event()
        zeros = np.zeros(_LOAD_BYTES, np.uint8)
        buffers = [(self.put(zeros, source), self.put(zeros, target)) for source, target in pairs]

        def run() -> None:
            # A stream for each pair: on one stream, copies would run in turn and load one link at a time.
            streams = [torch.cuda.Stream((s if s.is_cuda else t).device) for s, t in buffers]
            while not done.is_set():
                for (source, target), stream in zip(buffers, streams, strict=True):
                    with torch.cuda.stream(stream):
                        target.copy_(source, non_blocking=True)
                for stream in streams:
                    stream.synchronize()

        thread = threading.Thread(target=run, name="treefold-link-load", daemon=True)
        thread.start()

        def end() -> None:
            done.set()
            thread.join()

        return end


def _synchronize(*tensors: Any) -> None:
    for tensor in tensors:
        if tensor.is_cuda:
            torch.cuda.synchronize(tensor.device)


def _pinned_copy(tensor: Any) -> Any:
    """Return a copy in pinned memory; the tensor itself if there is no pinned memory."""
    try:
        return tensor.pin_memory()
    except RuntimeError:
        return tensor


def driver_version() -> str:
    """Return the driver's version from NVML; an empty string if NVML cannot be asked."""
    try:
        pynvml = importlib.import_module("pynvml")  # an extra, without types
        pynvml.nvmlInit()
        try:
            return str(pynvml.nvmlSystemGetDriverVersion())
        finally:
            pynvml.nvmlShutdown()
    except Exception:  # noqa: BLE001 - not installed, or no such driver: the results hold for this machine all the same
        return ""
