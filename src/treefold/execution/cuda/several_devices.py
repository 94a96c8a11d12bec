"""Runs a plan across GPUs and the host as streams of chunks, on PyTorch's streams, events and pinned memory.

The caller's streams are respected on every device: our work starts after everything enqueued there, and they wait for
its end. Copies of pageable host memory, and between devices that may not copy directly, go through pinned staging.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from typing import Any

import torch

from treefold.devices import device_type, torch_device
from treefold.errors import GpuError
from treefold.execution import links
from treefold.execution.actions import FlatMemory, leaf_actions, outputs
from treefold.execution.cuda import one_device
from treefold.execution.interface import Operand, Results, handed_over
from treefold.execution.schedule import DeviceStream, Operation, Schedule, issue, make_schedule
from treefold.fold import Fold
from treefold.keyed import BoundedCache
from treefold.observing import warn
from treefold.plan import Plan
from treefold.plan.ir import Action, Buffer, Combine, Role

#: Bytes of a chunk: at least what makes the bus worth the 0.1 ms that it takes to issue a chunk's operations, at most
#: what keeps the ends of a pipeline short.
LEAST_CHUNK_BYTES, MOST_CHUNK_BYTES = 2 << 20, 8 << 20
# Filling and draining a pipeline of k chunks takes about (steps − 1)/k of its time: 32 keeps that to a few percent.
_CHUNKS = 32
_MOST_SCHEDULES = 64


def run(plan: Plan, inputs: Sequence[Operand], fold: Fold | None, out: Results | None) -> Results:
    """Return each leaf's result per component, enqueued; what lies on the host is there when this returns.

    Raises:
        GpuError: a CUDA graph is being captured.

    """
    if torch.cuda.is_current_stream_capturing():
        raise GpuError(
            f"A CUDA graph of one GPU is being captured, and this plan works on {', '.join(plan.devices)}. "
            f"Capture reductions between replicas on one GPU; call others outside the capture."
        )
    is_pinned = _is_pinned(inputs)
    schedule = _schedule(plan, is_pinned=is_pinned)
    driver = TorchStreams(schedule, inputs, fold, is_pinned=is_pinned)
    try:
        # Copies within the call are no part of the caller's autograd graph, which would keep their memory alive.
        with torch.no_grad():
            issue(schedule, driver)
    finally:  # what was issued before an error still reads and writes memory that the callers' streams get back
        driver.join()
    return handed_over(inputs, driver.results(), out)


class TorchStreams:
    """PyTorch's streams. Operations on host memory are done at once, when what they wait for is done."""

    def __init__(
        self, schedule: Schedule, inputs: Sequence[Operand], fold: Fold | None, *, is_pinned: bool = False
    ) -> None:
        """Allocate all memory, so that later only the backend's temporaries can run out of it.

        ``is_pinned``: the caller's host memory is pinned, and results on the host shall be, too.
        """
        self.schedule, self.inputs, self.is_pinned = schedule, inputs, is_pinned
        self.leaves = leaf_actions(schedule.plan, inputs, fold)
        # PyTorch hands out its 32 streams of a device in turn, so two of ours, or those of another thread, may be one.
        # That costs overlap, never correctness: every dependency has its event.
        self.streams = {stream: _make_streams(stream) for stream in schedule.streams}
        # PyTorch's allocator reuses freed memory in the order of the stream that it was allocated on: the caller's.
        # That stream waits for ours at the end, so no buffer is reused while our streams still use it.
        arrays = [self._array(index, buffer) for index, buffer in enumerate(schedule.buffers)]
        self.memory = FlatMemory(self.leaves, schedule.buffers, arrays, _copy)
        self._gpus = [device for device in schedule.plan.devices if device_type(device) == "gpu"]
        # The caller's streams may still be writing the contributions, so our streams wait for them.
        begun = [torch.cuda.current_stream(torch_device(device)).record_event() for device in self._gpus]
        for own in self.streams.values():
            for stream in own:
                for event in begun:
                    stream.wait_event(event)
        for event in begun if any(not own for own in self.streams.values()) else ():
            event.synchronize()  # the host's own part has no stream to wait on

    def wait(self, stream: DeviceStream, event: Any) -> None:
        """Make a stream wait for an event; for the host's own stream, block. ``event`` is None for work of the host."""
        if event is None:
            return
        # Of a copy between GPUs both, the sender's and the receiver's: PyTorch orders it with the current streams of
        # the two.
        for own in self.streams[stream]:
            own.wait_event(event)
        if not self.streams[stream]:
            event.synchronize()

    def perform(self, operation: Operation) -> None:
        """Enqueue an operation, or run it at once if it is the host's."""
        with contextlib.ExitStack() as current:
            for stream in self.streams[operation.stream]:
                current.enter_context(torch.cuda.stream(stream))
            self._perform(operation.action)

    def _perform(self, action: Action) -> None:
        where = self.memory.buffers[action.target.buffer]
        # Of an exact plan all contributions meet at once: no partial folds travel.
        is_exact = self.schedule.plan.accumulate == "exact" and isinstance(action, Combine)
        if is_exact and device_type(where.device) == "gpu":
            parts = [self.memory.part(source) for source in action.sources]
            one_device.fold_parts(self.leaves[where.leaf], parts, self.memory.part(action.target))
        else:
            self.memory.perform(action)

    def signal(self, stream: DeviceStream) -> Any:
        """Return an event, or None for the host, whose work is done when ``perform`` returns."""
        own = self.streams[stream]
        return own[0].record_event() if own else None

    def join(self) -> None:
        """Make the caller's streams wait for all of ours."""
        for own in self.streams.values():
            # Each of ours is waited for by the caller's on every GPU: that is what lets PyTorch reuse our buffers in
            # the caller's order, and the caller read results without a wait of its own.
            for stream in own:
                event = stream.record_event()
                for device in self._gpus:
                    torch.cuda.current_stream(torch_device(device)).wait_event(event)
                # The host has no stream that could wait: its results are there when the call returns.
                if "cpu" in {device_type(device) for device in self.schedule.plan.devices}:
                    event.synchronize()

    def results(self) -> Results:
        """Return the outputs, each in the shape of its leaf."""
        return outputs(self.schedule.plan, self.inputs, lambda index: self.memory.arrays[index])

    def _array(self, index: int, buffer: Buffer) -> Any:
        if buffer.role is Role.INPUT:
            array = self.inputs[buffer.leaf].arrays[buffer.position]
            return array.detach().resolve_conj().resolve_neg().reshape(-1)
        dtype = getattr(torch, self.leaves[buffer.leaf].dtype(buffer.role))
        # PyTorch's pinned allocator notes the streams of each asynchronous copy, so a staging buffer that is dropped on
        # return is not reused before the last copy through it is done.
        if index in self.schedule.staging or (self.is_pinned and device_type(buffer.device) == "cpu"):
            return _pinned(buffer.length, dtype)
        return torch.empty(buffer.length, dtype=dtype, device=torch_device(buffer.device))


def _copy(target: Any, source: Any) -> None:
    """Enqueue a copy on the current stream; the host copies at once what lies on the host at both ends.

    A temporary source was allocated on this stream, so its memory is not reused before the copy is done.
    """
    target.copy_(source, non_blocking=True)


def _make_streams(stream: DeviceStream) -> list[Any]:
    """Return a CUDA stream for each GPU that takes part, the sender's first; none for what the host does itself.

    A copy between GPUs has one on either side: PyTorch lets the current streams of both wait for each other.
    """
    gpus = [name for name in (stream.device, stream.peer) if name.startswith("gpu")]
    return [torch.cuda.Stream(torch_device(name)) for name in gpus]


_schedules: BoundedCache[tuple[int, bool, int], tuple[Plan, Schedule]] = BoundedCache(_MOST_SCHEDULES)


def _schedule(plan: Plan, *, is_pinned: bool) -> Schedule:
    """Return the plan's schedule, made once for each state of the links; it keeps the plan, so that ids stay unique."""
    # By identity: a plan has thousands of actions, and hashing them in every call would cost more than the cache saves.
    key = id(plan), is_pinned, links.version()
    is_direct = functools.partial(_is_direct, is_pinned=is_pinned)

    def make() -> tuple[Plan, Schedule]:
        return plan, make_schedule(plan, chunk_bytes=_chunk_bytes(plan), is_direct=is_direct)

    return _schedules.made(key, make)[1]


def _chunk_bytes(plan: Plan) -> int:
    """Cut the longest copy into 32 chunks, within bounds."""
    nbytes = max((hop.nbytes for hop in plan.hops), default=0)
    return min(max(nbytes // _CHUNKS, LEAST_CHUNK_BYTES), MOST_CHUNK_BYTES)


def _is_direct(source: str, target: str, *, is_pinned: bool) -> bool:
    kinds = {device_type(source), device_type(target)}
    if "cpu" in kinds:
        # GPUs copy to and from pageable memory only by way of the driver's own buffers, while the host waits.
        return is_pinned or kinds == {"cpu"}
    return links.is_proved(source, target)


def _is_pinned(inputs: Sequence[Operand]) -> bool:
    """Tell whether GPUs can read all host memory themselves; results on the host are pinned then, too."""
    on_host = [array for operand in inputs for array in operand.arrays if array.is_cpu]
    return bool(on_host) and all(array.is_pinned() for array in on_host)


@functools.cache
def _warn_pageable(problem: str) -> None:
    warn(
        f"Pinned host memory cannot be had ({problem}), so copies between the host and GPUs go through pageable "
        "memory, at a fraction of the bus. WSL and containers bound it: raise the limit of locked memory (ulimit -l).",
        stacklevel=2,
    )


def _pinned(length: int, dtype: Any) -> Any:
    """Return pinned host memory, or pageable memory and a warning, once."""
    try:
        return torch.empty(length, dtype=dtype, pin_memory=True)
    except RuntimeError as error:
        _warn_pageable(str(error).splitlines()[0])
        return torch.empty(length, dtype=dtype)
